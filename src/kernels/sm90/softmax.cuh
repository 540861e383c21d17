// Online softmax of attention_sm90. A thread holds parts of two rows, as wgmma accumulators do. It computes the weights
// of a block while PV of the previous block is still running, so it does not multiply O: the caller does this, with
// output_scale. Device only.
#pragma once

#include "device/softmax.cuh"
#include "row_tile.cuh"

namespace rapt {

// row_sum = sum of exp2((s - row_max) * scale_log2). row_max follows the maximum lazily; OnlineSoftmax has the rules.
struct RowSoftmax {
  using Rules = OnlineSoftmax<true, 1, false>;

  float c;                                              // scale_log2: softmax scale * log2(e)
  float row_max[2] = {minus_infinity, minus_infinity};  // unit: raw scores
  float row_sum[2] = {0.0f, 0.0f};                      // sums over this thread's columns
  float output_scale[2] = {1.0f, 1.0f};                 // the factor for O after the last update
  bool any_unsafe_row = false;                          // some row of the warp needs the safe exponential
  int limit[2] = {0, 0};                                // largest score for which row_max does not change, as bits
  bool has_limits = false;                              // all limits of the warp are positive, no row is unsafe

  // Replaces scores by weights. In the counting pass, every visible key has weight 1. Returns whether O must be
  // multiplied by output_scale. All threads of a warp agree.
  template <int tiles>
  bool weigh(float (&s)[1][tiles][4], NanPass pass) {
    if (pass != NanPass::count_non_finite) return update(s);
#pragma unroll
    for (int n = 0; n < tiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[0][n][i] = s[0][n][i] == minus_infinity ? 0.0f : 1.0f;
    return false;
  }
  template <int tiles>
  void correct(float (&)[1][tiles][4]) {}  // nothing to do: update() has no weights to correct

 private:
  template <int tiles>
  bool update(float (&s)[1][tiles][4]) {
    const bool rescales = !(has_limits && !any_above_limit(s)) && follow_maximum(s);
    exponentiate(s);
    return rescales;
  }

  bool exceeds_threshold(float x, float row) const { return (x - row) * c > Rules::rescale_threshold; }

  // Raises row_max of the rows that need it. Returns whether the output must be rescaled.
  template <int tiles>
  bool follow_maximum(const float (&s)[1][tiles][4]) {
    float top[2];
    bool moves = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float x = fmaxf(s[0][0][2 * half], s[0][0][2 * half + 1]);
#pragma unroll
      for (int n = 1; n < tiles; ++n) x = fmaxf(x, fmaxf(s[0][n][2 * half], s[0][n][2 * half + 1]));
      top[half] = x;
      moves = moves | exceeds_threshold(x, row_max[half]);
    }
    return __any_sync(~0u, moves) && update_row_max(top);
  }

  // Returns whether some score of the warp exceeds its row's limit. Positive floats have the same order as their bits,
  // and the bits of negative floats are negative integers. So integer maxima can compare scores, with three operands
  // per instruction.
  template <int tiles>
  bool any_above_limit(const float (&s)[1][tiles][4]) const {
    bool above = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int even = 0, odd = 0;
#pragma unroll
      for (int n = 0; n < tiles; n += 2) {
        even = max3(even, bits(s[0][n][2 * half]), bits(s[0][n][2 * half + 1]));
        odd = max3(odd, bits(s[0][n + 1][2 * half]), bits(s[0][n + 1][2 * half + 1]));
      }
      above = above | (even > limit[half]) | (odd > limit[half]);
    }
    return __any_sync(~0u, above);
  }
  static int bits(float x) { return static_cast<int>(detail::bits_of(x)); }
  static int max3(int a, int b, int c) {
    const int high = b > c ? b : c;
    return a > high ? a : high;
  }

  bool update_row_max(const float (&top)[2]) {
    bool any_unsafe = false, rescales = false, positive = true;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float& row = row_max[half];
      const float old = row, maximum = quad_max(top[half]);
      row = exceeds_threshold(maximum, row) ? maximum : row;
      any_unsafe = any_unsafe | (Rules::needs_safe_exp(row, c) & row != minus_infinity);
      const float highest = row + __fdividef(Rules::rescale_threshold, c);
      positive = positive & (highest > 0.0f) & (highest <= largest_finite);
      limit[half] = bits(highest);
      const bool moved = row != old & old != minus_infinity;
      output_scale[half] = moved ? Rules::rescale_factor(old, row, c) : 1.0f;
      row_sum[half] *= output_scale[half];
      rescales = rescales | moved;
    }
    any_unsafe_row = __any_sync(~0u, any_unsafe);
    has_limits = !__any_sync(~0u, any_unsafe | !positive);
    return __any_sync(~0u, rescales);
  }

  template <int tiles>
  void exponentiate(float (&s)[1][tiles][4]) {
    if (any_unsafe_row) subtract_row_max(s);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float row = row_max[half], back = Rules::needs_safe_exp(row, c)
                                                  ? 0.0f
                                                  : __fmul_rn(row, c);  // needs_safe_exp is also true for row = -inf
      float even = 0.0f, odd = 0.0f;                                    // two chains hide latency
#pragma unroll
      for (int n = 0; n < tiles; ++n) {
        float &x = s[0][n][2 * half], &y = s[0][n][2 * half + 1];
        x = exp2_approx(fmaf(x, c, -back)), y = exp2_approx(fmaf(y, c, -back));
        even += x, odd += y;
      }
      row_sum[half] += even + odd;
    }
  }

  template <int tiles>
  void subtract_row_max(float (&s)[1][tiles][4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float row = row_max[i / 2], shift = Rules::needs_safe_exp(row, c) & row != minus_infinity ? row : 0.0f;
#pragma unroll
      for (int n = 0; n < tiles; ++n) s[0][n][i] -= shift;
    }
  }
};

}  // namespace rapt
