// Online softmax of attention_sm90: two rows a thread, as the accumulators of wgmma hold them. The weights of a step
// are made while the product of the step before is still being added to the output, so that the output's factor is
// handed out instead of applied. Device only.
#pragma once

#include "device/softmax.cuh"

namespace rapt {

// Rows' sums of exp2((s - reference) * c). The reference follows the row's maximum, and moves only where the maximum
// has outgrown it by 2^headroom: any number near the maximum gives the same quotient (OnlineSoftmax has the rules).
struct RowSoftmax {
  using Rules = OnlineSoftmax<true, 1, false>;

  float c;                                                // softmax scale * log2(e)
  float reference[2] = {minus_infinity, minus_infinity};  // of scores, before the scale
  float sum[2] = {0.0f, 0.0f};                            // of the thread's own columns
  float factor[2] = {1.0f, 1.0f};                         // of the output so far, after the last step
  bool wide = false;                                      // some row of the warp is far

  // Scores become weights. Returns whether some row's output must be multiplied with `factor`; the same in all threads
  // of the warp.
  template <int tiles>
  bool step(float (&s)[1][tiles][4]) {
    float top[2];
    bool moves = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float x = fmaxf(s[0][0][2 * half], s[0][0][2 * half + 1]);
#pragma unroll
      for (int n = 1; n < tiles; ++n) x = fmaxf(x, fmaxf(s[0][n][2 * half], s[0][n][2 * half + 1]));
      top[half] = x;
      moves = moves | outgrown(x, reference[half]);
    }
    const bool rescales = __any_sync(~0u, moves) && move_references(top);
    weights(s);
    return rescales;
  }

 private:
  bool outgrown(float x, float row) const { return (x - row) * c > Rules::headroom; }

  bool move_references(const float (&top)[2]) {
    bool any_far = false, rescales = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float& row = reference[half];
      const float old = row, maximum = quad_max(top[half]);
      row = outgrown(maximum, row) ? maximum : row;
      any_far = any_far | (Rules::far(row, c) & row != minus_infinity);
      const bool moved = row != old & old != minus_infinity;
      factor[half] = moved ? Rules::ratio(old, row, c) : 1.0f;
      sum[half] *= factor[half];
      rescales = rescales | moved;
    }
    wide = __any_sync(~0u, any_far);
    return __any_sync(~0u, rescales);
  }

  template <int tiles>
  void weights(float (&s)[1][tiles][4]) {
    if (wide) subtract_references(s);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float row = reference[half], back = Rules::far(row, c) ? 0.0f : __fmul_rn(row, c);  // -inf is far, too
      float even = 0.0f, odd = 0.0f;  // the step's own sum, in two chains
#pragma unroll
      for (int n = 0; n < tiles; ++n) {
        float &x = s[0][n][2 * half], &y = s[0][n][2 * half + 1];
        x = exp2_approx(fmaf(x, c, -back)), y = exp2_approx(fmaf(y, c, -back));
        even += x, odd += y;
      }
      sum[half] += even + odd;
    }
  }

  template <int tiles>
  void subtract_references(float (&s)[1][tiles][4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float row = reference[i / 2], shift = Rules::far(row, c) & row != minus_infinity ? row : 0.0f;
#pragma unroll
      for (int n = 0; n < tiles; ++n) s[0][n][i] -= shift;
    }
  }
};

}  // namespace rapt
