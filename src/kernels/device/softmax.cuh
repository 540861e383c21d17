// Online softmax (Milakov & Gimelshein 2018) on mma C fragments. A lane holds parts of two rows of each m-tile. Each
// row is spread over the four lanes of a quad. Device only.
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

// Packs two elements of a 16-bit type. The first one goes into the low half.
template <DType dtype>
inline unsigned pack2(float low, float high) {
  static_assert(dtype == DType::f16 || dtype == DType::bf16, "pack2 packs f16 or bf16");
  return dtype == DType::f16 ? pack_f16x2(low, high) : pack_bf16x2(low, high);
}

// row_sum = sum of exp2((x - row_max) * scale_log2). The x are QK^T products (scale_log2 = scale * log2(e)), or natural
// logits (scale_log2 = log2(e)). row_max follows the running maximum lazily. Any reference value near the maximum gives
// the same softmax, because its factor cancels in O / row_sum. So row_max changes only when the maximum exceeds row_max
// by more than rescale_threshold in log2 units (a factor of 2^rescale_threshold in the weights). This avoids most
// rescalings of O (an idea of FlashAttention-4). Each row decides on its own; the warp only votes on whether any row
// changes. Weights are multiplied by 2^log2_p_scale, so that they use more of E4M3's range (largest value 448,
// subnormal below 2^-6). With per_row_scale, each row has its own scale_log2.
template <int m_tiles, bool exact_max, int log2_p_scale = 0, bool per_row_scale = false>
struct OnlineSoftmax {
  static constexpr float rescale_threshold = exact_max ? 0.0f : 8.0f;  // log2; weights are at most 2^8; f16 holds 65504
  static constexpr float p_scale = 1 << log2_p_scale;

  float row_scale[per_row_scale ? m_tiles : 1][per_row_scale ? 2 : 1];  // scale_log2
  float row_max[m_tiles][2], row_sum[m_tiles][2];
  bool any_unsafe_row = false;  // at least one row of the warp needs the safe exponential

  explicit OnlineSoftmax(float scale_log2) {
#pragma unroll
    for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        row_max[mt][half] = minus_infinity, row_sum[mt][half] = 0.0f;
        row_scale[per_row_scale ? mt : 0][per_row_scale ? half : 0] = scale_log2;
      }
  }

  float row_scale_log2(int mt, int half) const { return row_scale[per_row_scale ? mt : 0][per_row_scale ? half : 0]; }

  // If |row_max * scale_log2| >= 2^12, the rounding of this product makes exp2(s * c - m * c) inexact: the weight of
  // the maximum would no longer round to 1. Such a row computes (s - m) * c instead.
  static bool needs_safe_exp(float m, float scale_log2) { return fabsf(m * scale_log2) >= 4096.0f; }

  // Returns exp2((a - b) * scale_log2), where b is the new row_max. If the row does not need the safe exponential,
  // both products are rounded exactly as in exponentiate(). So the factor and the old weights contain the same rounded
  // a * scale_log2, which cancels.
  static float rescale_factor(float a, float b, float scale_log2) {
    return exp2_approx(needs_safe_exp(b, scale_log2) ? (a - b) * scale_log2
                                                     : __fadd_rn(__fmul_rn(a, scale_log2), -__fmul_rn(b, scale_log2)));
  }

  // Converts a row_max m to a natural logit. The product is rounded as in exponentiate(), unless it overflows.
  static float natural_logit(float m, float scale_log2) {
    const float binary = __fmul_rn(m, scale_log2);
    return fabsf(binary) <= largest_finite ? binary * ln_2 : m * __fmul_rn(scale_log2, ln_2);
  }

  // Returns whether x exceeds m by more than the threshold. This is also true if m = -inf < x, because then the
  // difference is +inf.
  static bool exceeds_threshold(float x, float m, float scale_log2) { return (x - m) * scale_log2 > rescale_threshold; }

  // Replaces scores by weights and adds them to row_sum. If row_max changes, rescales row_sum and o.
  template <int n_tiles, int v_tiles>
  void update(float (&s)[m_tiles][n_tiles][4], float (&o)[m_tiles][v_tiles][4]) {
    float tile_max[m_tiles][2];
    find_max(s, tile_max);
    update(s, o, tile_max);
  }

  // The same for warps that share rows: tile_max has the largest scores of the rows over all these warps.
  template <int n_tiles, int v_tiles>
  void update(float (&s)[m_tiles][n_tiles][4], float (&o)[m_tiles][v_tiles][4], const float (&tile_max)[m_tiles][2]) {
    bool any_update = false;
#pragma unroll
    for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        any_update = any_update | exceeds_threshold(tile_max[mt][half], row_max[mt][half],
                                                    row_scale_log2(mt, half));  // bitwise or: no branch
    if (__any_sync(~0u, any_update)) update_row_max(tile_max, o);
    exponentiate(s);
  }

  // The lane's largest score of each row.
  template <int n_tiles>
  static void find_max(const float (&s)[m_tiles][n_tiles][4], float (&tile_max)[m_tiles][2]) {
#pragma unroll
    for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float x = fmaxf(s[mt][0][2 * half], s[mt][0][2 * half + 1]);
#pragma unroll
        for (int n = 1; n < n_tiles; ++n) x = fmaxf(x, fmaxf(s[mt][n][2 * half], s[mt][n][2 * half + 1]));
        tile_max[mt][half] = x;
      }
  }

 private:
  template <int v_tiles>
  void update_row_max(const float (&tile_max)[m_tiles][2], float (&o)[m_tiles][v_tiles][4]) {
    float old_max[m_tiles][2];
    bool unsafe = false, rescales = false;
#pragma unroll
    for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& m = row_max[mt][half];
        old_max[mt][half] = m;
        const float maximum = quad_max(tile_max[mt][half]);
        m = exceeds_threshold(maximum, m, row_scale_log2(mt, half)) ? maximum : m;
        unsafe = unsafe | (needs_safe_exp(m, row_scale_log2(mt, half)) & m != minus_infinity);
        rescales = rescales | (m != old_max[mt][half] & old_max[mt][half] != minus_infinity);
      }
    any_unsafe_row = __any_sync(~0u, unsafe);
    if (!__any_sync(~0u, rescales)) return;  // no changed row had seen a key: nothing to rescale
#pragma unroll
    for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float m = row_max[mt][half];
        const float factor =
            m == old_max[mt][half] ? 1.0f : rescale_factor(old_max[mt][half], m, row_scale_log2(mt, half));
        row_sum[mt][half] *= factor;
#pragma unroll
        for (int n = 0; n < v_tiles; ++n) o[mt][n][2 * half] *= factor, o[mt][n][2 * half + 1] *= factor;
      }
  }

  template <int n_tiles>
  void exponentiate(float (&s)[m_tiles][n_tiles][4]) {
    if (any_unsafe_row) subtract_row_max(s);
#pragma unroll
    for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float m = row_max[mt][half], scale_log2 = row_scale_log2(mt, half);
        // back: the scaled row maximum that exponentiate() subtracts. needs_safe_exp() is also true for m = -inf.
        const float back = needs_safe_exp(m, scale_log2) ? 0.0f : __fmul_rn(m, scale_log2);
        const float shift = log2_p_scale == 0 ? -back : log2_p_scale - back;
        float even = 0.0f, odd = 0.0f;  // two independent chains of additions
#pragma unroll
        for (int n = 0; n < n_tiles; ++n) {
          float &x = s[mt][n][2 * half], &y = s[mt][n][2 * half + 1];
          x = exp2_approx(fmaf(x, scale_log2, shift)), y = exp2_approx(fmaf(y, scale_log2, shift));
          even += x, odd += y;
        }
        row_sum[mt][half] += even + odd;
      }
  }

  template <int n_tiles>
  void subtract_row_max(float (&s)[m_tiles][n_tiles][4]) const {
#pragma unroll
    for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float m = row_max[mt][i / 2],
                    shift = needs_safe_exp(m, row_scale_log2(mt, i / 2)) & m != minus_infinity ? m : 0.0f;
#pragma unroll
        for (int n = 0; n < n_tiles; ++n) s[mt][n][i] -= shift;
      }
  }
};

}  // namespace rapt
