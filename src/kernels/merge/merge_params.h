// MergeParams: the run-time parameters of the merge kernel. MergeConfig: its compile-time choices. Includes nothing
// outside shared/.
#pragma once

#include "../shared/params.h"

namespace rapt {

// A partial result: f32 out and lse over some of the keys.
struct MergePart {
  const float* out;
  const float* lse;
  index_t out_batch, out_head, out_row, out_column, lse_batch, lse_head, lse_row;
};

struct MergeConfig {
  DType out = DType::f32;
  int warps = 4;  // per CTA; each computes one row at a time

  constexpr int threads() const { return 32 * warps; }
  constexpr bool operator==(const MergeConfig&) const = default;
};

struct MergeParams {
  static constexpr int max_parts = 48;  // every driver allows 4 KB of kernel parameters

  TensorRef out, lse;  // lse may be absent
  const float* sinks = nullptr;
  index_t sinks_head = 0;
  index_t batch = 0, heads = 0, rows = 0, channels = 0;
  int count = 0;
  MergePart parts[max_parts] = {};
};
static_assert(sizeof(MergeParams) <= 4096);

// Bytes of dynamic shared memory: it holds the weights of each warp's row.
constexpr int merge_smem_bytes(const MergeConfig& c) {
  return c.warps * MergeParams::max_parts * static_cast<int>(sizeof(double));
}

}  // namespace rapt
