// Two-level accumulation of FP8 PV for attention_sm90. wgmma's FP8 accumulators keep fewer bits than f32 (docs/fp8.md,
// "The narrow accumulator"), and registers for a second accumulator are scarce. So after each promotion_interval keys a
// thread adds its accumulators to f32 sums in the workspace, and begins again. L2 does the additions, so the thread
// does not wait for them. The sums stay in L2: a CTA has one set. Device only.
#pragma once

#include "device/softmax.cuh"
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
  float unit[2] = {1.0f, 1.0f};  // sums = unit * (the sums in the units of the accumulators)

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
    // A unit that is far from 1 could overflow.
    if (has_sums && !(fmaxf(unit[0], unit[1]) <= 0x1p60f)) add_sums(o), has_sums = false;
    if (!has_sums) unit[0] = unit[1] = 1.0f;
#pragma unroll
    for (int n = 0; n < tiles; ++n) {
      float* const to = sums + 4 * consumers * n;
      const float x = o[0][n][0] * unit[0], y = o[0][n][1] * unit[0], z = o[0][n][2] * unit[1],
                  w = o[0][n][3] * unit[1];
      if (has_sums)
        add_global_4(to, x, y, z, w);
      else
        store_global_4(to, x, y, z, w);
    }
    has_sums = true;
    return true;
  }
  // The caller has multiplied the accumulators by `scale`.
  void rescale(const float (&scale)[2]) {
    if constexpr (blocks > 0) unit[0] = __fdividef(unit[0], scale[0]), unit[1] = __fdividef(unit[1], scale[1]);
  }
  // Makes the accumulators the sum over all blocks.
  void finish(OFragment& o) const {
    if constexpr (blocks > 0)
      if (has_sums) add_sums(o);
  }

 private:
  void add_sums(OFragment& o) const {
    const float factor[2] = {__fdividef(1.0f, unit[0]), __fdividef(1.0f, unit[1])};
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
