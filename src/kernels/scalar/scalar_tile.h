// How attention_scalar cuts its work: thread blocks, key tiles, channel slices, shared memory.
// Read by its host half (grid, bytes) and by the kernel; includes nothing outside shared/.
#pragma once

#include "../shared/config.h"
#include "../shared/params.h"

namespace rapt {

// Shared memory of a block, in floats: queries [head_dim][block_m, padded], weights [block_m / rows][block_n][rows],
// then K [block_n][head_dim + 1] and V [block_n][head_dim_v], which take turns.
struct ScalarTile {
  int rows;     // query rows of a warp
  int q_pitch;  // 4 floats of padding keep 16-byte alignment and spread the banks
  int k_pitch;  // odd: lanes read different keys
  int weights, keys, floats;

  constexpr explicit ScalarTile(const AttentionConfig& c)
      : rows(c.block_m / c.warps_m),
        q_pitch(c.block_m + 4),
        k_pitch(c.head_dim + 1),
        weights(c.head_dim * q_pitch),
        keys(weights + c.block_m * c.block_n),
        floats(keys + c.block_n * (k_pitch > c.head_dim_v ? k_pitch : c.head_dim_v)) {}
};

// Row tiles of a head, all sequences together. Sequence b of a packed tensor owns those from cu_seqlens[b] / block_m +
// b to the same of b + 1: never fewer than its rows need, and found without counting other sequences' tiles.
constexpr index_t scalar_row_tiles(const AttentionParams& p, int block_m) {
  if (p.cu_seqlens_q.present()) return p.batch == 0 ? 0 : p.total_q / block_m + p.batch;
  return p.batch * ((p.seqlen_q + block_m - 1) / block_m);
}

// Slices of the value's channels: one block computes so many channels as its registers hold.
constexpr index_t scalar_slices(const AttentionParams& p, int channels) {
  return (p.head_dim_v + channels - 1) / channels;
}

constexpr index_t scalar_work_items(const AttentionParams& p, const AttentionConfig& c) {
  return scalar_row_tiles(p, c.block_m) * p.heads_q * scalar_slices(p, c.head_dim_v);
}

}  // namespace rapt
