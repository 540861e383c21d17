// What attention_sm80's host and device halves agree on: its parameter block and its shared memory.
// Compiled by both; includes nothing outside shared/.
#pragma once

#include "config.h"
#include "params.h"
#include "schedule.h"

namespace rapt {

struct Sm80Params {
  AttentionParams attention;
  TileOrder order;
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
