// Two-level accumulation of FP8 PV for attention_sm90. wgmma's FP8 accumulators keep fewer bits than f32 (docs/fp8.md,
// "The narrow accumulator"), and registers for a second accumulator are scarce. So after each promotion_interval keys a
// thread adds its accumulators to f32 sums in the workspace, and begins again. These sums stay in L2: a CTA has one
// set. Device only.
#pragma once

#include "ptx/copy.cuh"
#include "sm90.h"

namespace rapt {

template <const Sm90Config& cfg>
struct Promotion {
  static constexpr int tiles = Sm90Layout(cfg).dim_v / 8, consumers = 128 * cfg.warpgroups,
                       blocks = cfg.promotion_interval / cfg.block_n;
  using OFragment = float[1][tiles][4];

  float* const sums;         // tile n of this thread's accumulators is at sums + 4 * consumers * n
  int blocks_left = blocks;  // until the accumulators move
  bool has_sums = false;
  float factor[2] = {1.0f, 1.0f};  // for the sums, because the rows' maximum has changed since

  // Returns where a thread's sums begin.
  static float* sums_of(const Sm90Params& params) {
    if constexpr (blocks == 0) return nullptr;
    return params.partial + size_t{blockIdx.x} * tiles * 4 * consumers + 4 * (threadIdx.x - 128);
  }

  // Call this after each block's PV. Returns whether the accumulators were moved, so that the next PV must overwrite
  // them.
  bool moves(OFragment& o) {
    if constexpr (blocks == 0) return false;
    if (--blocks_left > 0) return false;
    blocks_left = blocks;
    add_sums(o);
#pragma unroll
    for (int n = 0; n < tiles; ++n)
      store_global_4(sums + 4 * consumers * n, o[0][n][0], o[0][n][1], o[0][n][2], o[0][n][3]);
    has_sums = true, factor[0] = factor[1] = 1.0f;
    return true;
  }
  void rescale(const float (&scale)[2]) {
    if constexpr (blocks > 0) factor[0] *= scale[0], factor[1] *= scale[1];
  }
  // Makes the accumulators the sum over all blocks.
  void finish(OFragment& o) const {
    if constexpr (blocks > 0) add_sums(o);
  }

 private:
  void add_sums(OFragment& o) const {
    if (!has_sums) return;
#pragma unroll
    for (int n = 0; n < tiles; ++n) {
      float x[4];
      load_global_4(sums + 4 * consumers * n, x[0], x[1], x[2], x[3]);
#pragma unroll
      for (int i = 0; i < 4; ++i) o[0][n][i] = fmaf(x[i], factor[i / 2], o[0][n][i]);
    }
  }
};

}  // namespace rapt
