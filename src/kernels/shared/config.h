// AttentionConfig: the compile-time choices of a GPU attention kernel, one value instead of twenty template arguments.
// Chosen by a family's host half, written out by kernels/emit.cpp, read by the kernel; includes nothing outside
// shared/.
#pragma once

#include "dtype.h"

namespace rapt {

struct AttentionConfig {
  // Element types of the tensors.
  DType q = DType::f16, k = DType::f16, v = DType::f16, out = DType::f16;
  int head_dim = 0, head_dim_v = 0;

  // Tiles: block_m query rows a thread block; block_n keys that a warp takes at a time; warps_m x warps_k warps, the
  // rows dealt to warps_m of them and the keys of a step (block_n * warps_k) to warps_k; key steps held at once.
  int block_m = 0, block_n = 0, warps_m = 0, warps_k = 1, stages = 2;
  bool q_in_registers = false;  // else query fragments are read from shared memory again for each key step
  int min_blocks = 1;           // thread blocks that must fit on an SM: bounds the registers

  // What a score passes through, in this order (docs/semantics.md). With none of them but `bounded` and a positive
  // scale it is `folded`: exp2(s * c - m * c) in one fused operation, c = scale * log2(e).
  bool folded = true;
  bool softcap = false;
  DType bias = DType::none;
  bool alibi = false;
  bool mask = false;     // the boolean tensor
  bool bounded = false;  // causal or window: each row has its own range of keys

  bool f16_accumulate = false;  // acc=f16: products of a tile are summed in half precision

  constexpr int threads() const { return 32 * warps_m * warps_k; }
  constexpr int step_keys() const { return block_n * warps_k; }
  // Rows of a tile may see different keys, so that a key can be hidden from one and seen by another.
  constexpr bool row_masks() const { return bounded || mask || bias != DType::none; }

  constexpr bool operator==(const AttentionConfig&) const = default;
};

constexpr int round_up(int n, int multiple) { return (n + multiple - 1) / multiple * multiple; }

// Whether output leaves attention_sm80 through f32 rows in shared memory, to be merged, rather than through Q's tile.
constexpr bool merges_output(const AttentionConfig& c) {
  return c.warps_k > 1 || !is_16bit(c.out) || round_up(c.head_dim_v, 16) > round_up(c.head_dim, 16);
}
constexpr int merge_pitch(const AttentionConfig& c) { return round_up(c.head_dim_v, 32) + 8; }  // floats of a row

// Dynamic shared memory of attention_sm80: the rows of Q and `stages` steps of K and V, 16-bit, rows padded to whole
// k-steps; the same bytes later hold what is merged.
constexpr int smem_bytes(const AttentionConfig& c) {
  const int dim = round_up(c.head_dim, 16), dim_v = round_up(c.head_dim_v, 16);
  const int tiles = 2 * (c.block_m * dim + c.stages * c.step_keys() * (dim + dim_v));
  const int merge = merges_output(c) ? 4 * c.warps_k * c.block_m * (merge_pitch(c) + 2) : 0;
  return tiles > merge ? tiles : merge;
}

}  // namespace rapt
