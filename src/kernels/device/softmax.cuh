// Online softmax (Milakov & Gimelshein 2018) on mma accumulator fragments: a lane holds parts of two rows of each
// m-tile, and the four lanes of a quad hold a row together. Device only.
#pragma once

#include "numeric.cuh"
#include "shared/dtype.h"

namespace rapt {

constexpr float log2_e = 1.4426950408889634f, ln_2 = 0.6931471805599453f;
constexpr float minus_infinity = detail::float_of(0xff800000u);
constexpr float smallest_normal = detail::float_of(0x00800000u), largest_finite = detail::float_of(0x7f7fffffu);

inline float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
inline float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// Two elements of one 16-bit format, the first in the low half.
template <DType dtype>
inline unsigned pack2(float low, float high) {
  static_assert(dtype == DType::f16 || dtype == DType::bf16, "pack2 packs f16 or bf16");
  return dtype == DType::f16 ? pack_f16x2(low, high) : pack_bf16x2(low, high);
}

// Rows' sums of exp2((x - reference) * c). Scores x are raw products with c = scale * log2(e) where `folded`, and
// natural logits with c = log2(e) otherwise. The reference is not the running maximum but follows it: any number near
// it gives the same quotient, so it moves only when the maximum has outgrown it by 2^headroom, which spares most
// rescalings of the output (the idea is FlashAttention-4's). Each row decides for itself; the warp only votes on
// whether any moves.
// Weights are scaled by 2^log2_one: E4M3 holds 448 and falls to subnormals at 2^-6.
// by_row: folded logits of each row have a c of their own.
template <bool folded, int m_tiles, bool exact_maximum, int log2_one = 0, bool by_row = false>
struct OnlineSoftmax {
  static constexpr float headroom = exact_maximum ? 0.0f : 8.0f;  // weights stay below 2^8: far from f16's 65504
  static constexpr float one = 1 << log2_one;

  float row_factor[by_row ? m_tiles : 1][by_row ? 2 : 1];  // c of folded logits
  float reference[m_tiles][2], sum[m_tiles][2];
  bool wide = !folded;  // some row of the warp is far

  explicit OnlineSoftmax(float c) {
#pragma unroll
    for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        reference[mt][half] = minus_infinity, sum[mt][half] = 0.0f;
        row_factor[by_row ? mt : 0][by_row ? half : 0] = c;
      }
  }

  float c_of(int mt, int half) const { return folded ? row_factor[by_row ? mt : 0][by_row ? half : 0] : log2_e; }

  // A row whose product reference * c is so large that its rounding would matter subtracts first and multiplies then:
  // from 2^12 on the weight of the maximum would no longer round to 1, and a row that sees one key lose a bit by it.
  static bool far(float row, float c) { return !folded || fabsf(row * c) >= 4096.0f; }

  // exp2((a - b) * c), b being the row's new reference. Unless it is far both products are rounded as in weights(), so
  // that they cancel exactly.
  static float ratio(float a, float b, float c) {
    return exp2_approx(far(b, c) ? (a - b) * c : __fadd_rn(__fmul_rn(a, c), -__fmul_rn(b, c)));
  }

  // A reference as a natural logit.
  static float natural(float row, float c) { return folded ? __fmul_rn(row, c) * ln_2 : row; }

  // Scores become weights; sums and, where the reference moves, earlier output follow.
  template <int n_tiles, int v_tiles>
  void step(float (&s)[m_tiles][n_tiles][4], float (&o)[m_tiles][v_tiles][4]) {
    float top[m_tiles][2];
    bool moves = false;
#pragma unroll
    for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float x = fmaxf(s[mt][0][2 * half], s[mt][0][2 * half + 1]);
#pragma unroll
        for (int n = 1; n < n_tiles; ++n) x = fmaxf(x, fmaxf(s[mt][n][2 * half], s[mt][n][2 * half + 1]));
        top[mt][half] = x;
        moves = moves | outgrown(x, reference[mt][half], c_of(mt, half));  // no branches
      }
    if (__any_sync(~0u, moves)) move_references(top, o);
    weights(s);
  }

 private:
  // Whatever is above -inf outgrows a reference of -inf.
  static bool outgrown(float x, float row, float c) { return (x - row) * c > headroom; }

  template <int v_tiles>
  void move_references(const float (&top)[m_tiles][2], float (&o)[m_tiles][v_tiles][4]) {
    float old[m_tiles][2];
    bool any_far = false, rescales = false;
#pragma unroll
    for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& row = reference[mt][half];
        old[mt][half] = row;
        const float maximum = quad_max(top[mt][half]);
        row = outgrown(maximum, row, c_of(mt, half)) ? maximum : row;
        any_far = any_far | (far(row, c_of(mt, half)) & row != minus_infinity);
        rescales = rescales | (row != old[mt][half] & old[mt][half] != minus_infinity);
      }
    wide = !folded || __any_sync(~0u, any_far);
    if (!__any_sync(~0u, rescales)) return;  // nothing was summed so far
#pragma unroll
    for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float row = reference[mt][half];
        const float factor = row == old[mt][half] ? 1.0f : ratio(old[mt][half], row, c_of(mt, half));
        sum[mt][half] *= factor;
#pragma unroll
        for (int n = 0; n < v_tiles; ++n) o[mt][n][2 * half] *= factor, o[mt][n][2 * half + 1] *= factor;
      }
  }

  template <int n_tiles>
  void weights(float (&s)[m_tiles][n_tiles][4]) {
    if (wide) subtract_references(s);
#pragma unroll
    for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float row = reference[mt][half], c = c_of(mt, half);
        const float back = far(row, c) ? 0.0f : __fmul_rn(row, c);  // -inf is far, too
        const float shift = log2_one == 0 ? -back : log2_one - back;
        float even = 0.0f, odd = 0.0f;  // the step's own sum, in two chains
#pragma unroll
        for (int n = 0; n < n_tiles; ++n) {
          float &x = s[mt][n][2 * half], &y = s[mt][n][2 * half + 1];
          x = exp2_approx(fmaf(x, c, shift)), y = exp2_approx(fmaf(y, c, shift));
          even += x, odd += y;
        }
        sum[mt][half] += even + odd;
      }
  }

  template <int n_tiles>
  void subtract_references(float (&s)[m_tiles][n_tiles][4]) const {
#pragma unroll
    for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float row = reference[mt][i / 2], shift = far(row, c_of(mt, i / 2)) & row != minus_infinity ? row : 0.0f;
#pragma unroll
        for (int n = 0; n < n_tiles; ++n) s[mt][n][i] -= shift;
      }
  }
};

}  // namespace rapt
