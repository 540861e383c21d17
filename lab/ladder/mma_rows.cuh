// Common code of the ladder's fused rungs: scores become weights in the registers of mma.sync. Included by
// lab/ladder/*.cuh only.
#pragma once

#include "mma_tile.cuh"

namespace rapt::ladder {

// The 16 query rows of a warp: output, running maximum and sum. A lane holds parts of rows lane / 4 and lane / 4 + 8.
template <const Sm80Config& cfg>
struct MmaRows : MmaTiles<cfg> {
  using Tiles = MmaTiles<cfg>;
  using Tiles::n_tiles;
  using Tiles::p;

  float o[dim / 8][4] = {};
  float max[2] = {minus_infinity, minus_infinity}, sum[2] = {};

  using Tiles::Tiles;

  // Turns the scores of one row into weights, and rescales the row's output to the new maximum. The row is lane / 4 +
  // 8 * half.
  void softmax(float (&s)[n_tiles][4], int half) {
    float m = max[half];
#pragma unroll
    for (int n = 0; n < n_tiles; ++n)
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) m = fmaxf(m, s[n][i] *= p.scale);
    m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
    m = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
    const float rescale = exp2_approx((max[half] - m) * log2_e);
    max[half] = m;
    sum[half] *= rescale;
#pragma unroll
    for (int n = 0; n < n_tiles; ++n)
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) sum[half] += s[n][i] = exp2_approx((s[n][i] - m) * log2_e);
#pragma unroll
    for (int n = 0; n < dim / 8; ++n) o[n][2 * half] *= rescale, o[n][2 * half + 1] *= rescale;
  }

  // o += weights * v. Two accumulator tiles of s have the layout of one operand tile.
  void add_values(const float (&s)[n_tiles][4], unsigned v) {
#pragma unroll
    for (int t = 0; t < n_tiles; t += 2) {
      const unsigned weights[4] = {pack_f16x2(s[t][0], s[t][1]), pack_f16x2(s[t][2], s[t][3]),
                                   pack_f16x2(s[t + 1][0], s[t + 1][1]), pack_f16x2(s[t + 1][2], s[t + 1][3])};
      this->accumulate(o, weights, v, t * 8);
    }
  }

  void store_rows() {
#pragma unroll
    for (float& total : sum) {
      total += __shfl_xor_sync(~0u, total, 1);
      total += __shfl_xor_sync(~0u, total, 2);
    }
    this->store(o, sum);
  }
};

}  // namespace rapt::ladder
