// ScalarConfig: the compile-time choices of attention_scalar, made by attention_scalar.cpp. The file also defines the
// layout of shared memory and the division of the work, for the host code (grid, bytes) and the kernel. Includes only
// shared/.
#pragma once

#include "../shared/params.h"
#include "../shared/variant.h"

namespace rapt {

struct ScalarConfig : AttentionVariant {
  int block_m = 0, block_n = 0;  // query rows of a CTA, keys of a tile
  int warps_m = 0;               // warps of a CTA; its rows are split among them
  int min_blocks = 1;            // CTAs per SM in __launch_bounds__; limits registers
  bool paged = false;            // K and V are in pages (PageTable)

  constexpr int threads() const { return 32 * warps_m; }

  constexpr bool operator==(const ScalarConfig&) const = default;
};

// Shared memory of a CTA in floats: Q [head_dim][block_m, padded]; P [block_m / rows][block_n][rows]; then K [block_n]
// [head_dim + 1] and V [block_n][head_dim_v] in the same place.
struct ScalarTile {
  int rows;                     // query rows per warp
  int q_pitch;                  // 4 floats of padding: 16-byte alignment, no bank conflicts
  int k_pitch;                  // odd: lanes read different keys without bank conflicts
  int p_smem, kv_smem, floats;  // offsets of P and of K or V; total

  constexpr explicit ScalarTile(const ScalarConfig& c)
      : rows(c.block_m / c.warps_m),
        q_pitch(c.block_m + 4),
        k_pitch(c.head_dim + 1),
        p_smem(c.head_dim * q_pitch),
        kv_smem(p_smem + c.block_m * c.block_n),
        floats(kv_smem + c.block_n * (k_pitch > c.head_dim_v ? k_pitch : c.head_dim_v)) {}
};

// Number of m blocks of a head over all sequences. In a packed tensor, the first m block of sequence b is
// cu_seqlens[b] / block_m + b, and its last one comes before the first one of sequence b + 1. A sequence always has
// enough blocks for its rows, and no prefix sum over sequences is needed.
constexpr index_t scalar_m_blocks(const AttentionParams& p, int block_m) {
  if (p.cu_seqlens_q.present()) return p.batch == 0 ? 0 : p.total_q / block_m + p.batch;
  return p.batch * ((p.seqlen_q + block_m - 1) / block_m);
}

// Number of slices of head_dim_v. A CTA computes one slice, because its registers hold only so many channels.
constexpr index_t scalar_v_slices(const AttentionParams& p, int channels) {
  return (p.head_dim_v + channels - 1) / channels;
}

constexpr index_t scalar_work_items(const AttentionParams& p, const ScalarConfig& c) {
  return scalar_m_blocks(p, c.block_m) * p.heads_q * scalar_v_slices(p, c.head_dim_v);
}

}  // namespace rapt
