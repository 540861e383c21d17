// Converts rows of any storage format to float and back. Uses the vector conversions of simd.h if they support the
// format. Otherwise uses branchless loops that compilers vectorise, or tables for 8-bit formats. Each element gets the
// same result as with kernels/shared/dtype.h. Included by the isa_*.cpp units and, in its scalar form, by products.cpp
// (internal linkage).
#pragma once

#include <stdint.h>

#include "cpu/attention_call.h"
#include "cpu/simd.h"

namespace rapt::cpu {
namespace {

inline float f16_widen(uint16_t c) {
  const uint32_t magnitude = static_cast<uint32_t>(c & 0x7fffu) << 13;
  // A multiplication by 2^112 changes the exponent bias from 15 to 127, also for subnormals. inf and NaN are fixed up.
  const uint32_t finite = detail::bits_of(detail::float_of(magnitude) * 0x1p112f);
  const uint32_t special = magnitude | 0x7f800000u | (magnitude > 0x0f800000u ? 0x400000u : 0u);
  const uint32_t sign = static_cast<uint32_t>(c & 0x8000u) << 16;
  return detail::float_of(sign | (magnitude >= 0x0f800000u ? special : finite));
}

// The values of all bit patterns of the 8-bit formats.
constexpr int count_fp8() {
  int count = 0;
  for (int t = 0; t < dtype_count; ++t) count += is_fp8(static_cast<DType>(t));
  return count;
}
struct CodeTables {
  float number[count_fp8()][256];
  uint8_t place[dtype_count];  // the index of a dtype in `number`
  constexpr CodeTables() : number(), place() {
    uint8_t next = 0;
    for (int t = 0; t < dtype_count; ++t) {
      const auto dtype = static_cast<DType>(t);
      if (!is_fp8(dtype)) continue;
      for (int c = 0; c < 256; ++c) number[next][c] = code_to_float(dtype, static_cast<uint8_t>(c));
      place[t] = next++;
    }
  }
  const float* of(DType t) const { return number[place[static_cast<int>(t)]]; }
};
constexpr CodeTables code_tables;

inline uint16_t f16_narrow(float x) {
  const uint32_t bits = detail::bits_of(x), magnitude = bits & 0x7fffffffu;
  // For normal results: rounds the 13 dropped bits to nearest even in integer arithmetic, and changes the bias.
  const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // For subnormal results: the addition of 0.5 rounds, and leaves the f16 bits in the low bits.
  const uint32_t subnormal = detail::bits_of(detail::float_of(magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
  const uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  return static_cast<uint16_t>(((bits >> 16) & 0x8000u) |
                               (magnitude >= 0x47800000u || finite > 0x7c00u ? special : finite));
}

template <class Code, class Widen>
inline void widen_row(const Code* src, int64_t stride, int64_t n, float* dst, Widen widen) {
  if (stride == 1) {
    for (int64_t i = 0; i < n; ++i) dst[i] = widen(src[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) dst[i] = widen(src[i * stride]);
  }
}

#if defined(RAPT_VECTOR_WIDENING)
// Converts n >= 2 * lanes contiguous elements and multiplies by factor, 2 * lanes at a time. The last two blocks can
// overlap.
template <class From, class Code>
inline void widen_vectors(const Code* src, int64_t n, float factor, float* dst) {
  constexpr int64_t width = 2 * lanes;
  const Vec by = splat(factor);
  for (int64_t i = 0; i < n; i += width) {
    const int64_t at = i + width <= n ? i : n - width;
    const Pair x = From::widen(src + at, by);
    store(x.first, dst + at);
    store(x.second, dst + at + lanes);
  }
}

// Returns whether the vector conversion of these n contiguous FP8 elements, times factor, gives the same results as
// dtype.h.
inline bool vectors_widen(DType dtype, const uint8_t* src, int64_t n, float factor) {
  if (n < 2 * lanes) return false;
  if (dtype == DType::e4m3) return factor < 0x1p119f && !any_e4m3_nan(src, n);  // 256 * factor does not overflow
  return dtype == DType::e5m2 || dtype == DType::sim8;
}
// Calls f(From) with the vector converter of a dtype. The converter needs vector_factor() in place of factor.
template <class F>
inline void with_vectors_of(DType dtype, const F& f) {
  if (dtype == DType::e4m3) return f(FromE4m3Over256());
  if (dtype == DType::e5m2) return f(FromE5m2());
  f(FromSim8());
}
inline float vector_factor(DType dtype, float factor) { return dtype == DType::e4m3 ? 256.0f * factor : factor; }
#endif

inline void read_f16(const uint16_t* src, int64_t stride, int64_t n, float* dst) {
#if defined(RAPT_VECTOR_WIDENING)
  if (stride == 1 && n >= 2 * lanes) return widen_vectors<FromF16>(src, n, 1.0f, dst);
#endif
  widen_row(src, stride, n, dst, f16_widen);
}

// Reads 8-bit elements and multiplies them by factor. Uses a table if the elements are not contiguous, if they are few,
// if they include the NaN of E4M3, or if there is no vector conversion.
inline void read_codes(DType dtype, const uint8_t* src, int64_t stride, int64_t n, float* dst, float factor) {
#if defined(RAPT_VECTOR_WIDENING)
  if (stride == 1 && vectors_widen(dtype, src, n, factor))
    return with_vectors_of(dtype,
                           [&]<class From>(From) { widen_vectors<From>(src, n, vector_factor(dtype, factor), dst); });
#endif
  const float* const numbers = code_tables.of(dtype);
  widen_row(src, stride, n, dst, [=](uint8_t c) { return numbers[c] * factor; });
}

// Reads n elements from element `first` on as float. FP8 elements are multiplied by factor.
inline void read_elements(DType dtype, const void* data, int64_t first, int64_t stride, int64_t n, float* dst,
                          float factor = 1.0f) {
  switch (dtype) {
    case DType::f32:
      widen_row(static_cast<const float*>(data) + first, stride, n, dst, [](float x) { return x; });
      break;
    case DType::f16: read_f16(static_cast<const uint16_t*>(data) + first, stride, n, dst); break;
    case DType::bf16:
      widen_row(static_cast<const uint16_t*>(data) + first, stride, n, dst,
                [](uint16_t c) { return bf16_to_float(c); });
      break;
    default:
      if (is_fp8(dtype)) read_codes(dtype, static_cast<const uint8_t*>(data) + first, stride, n, dst, factor);
  }
}

// Reads row (b, h, s) of a tensor.
inline void read_row(const TensorRef& t, int64_t b, int64_t h, int64_t s, int64_t n, float* dst, float factor = 1.0f) {
  read_elements(t.dtype, t.data, t.index(b, h, s), t.column, n, dst, factor);
}

template <class Code, class Narrow>
inline void narrow_row(const float* src, int64_t n, Code* dst, int64_t stride, Narrow narrow) {
  if (stride == 1) {
    for (int64_t i = 0; i < n; ++i) dst[i] = narrow(src[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) dst[i * stride] = narrow(src[i]);
  }
}

// Writes n floats as row (b, h, s) of an output tensor (f32, f16 or bf16).
inline void write_row(const TensorRef& t, int64_t b, int64_t h, int64_t s, int64_t n, const float* src) {
  const int64_t first = t.index(b, h, s);
  switch (t.dtype) {
    case DType::f32:
      narrow_row(src, n, static_cast<float*>(t.data) + first, t.column, [](float x) { return x; });
      break;
    case DType::f16: narrow_row(src, n, static_cast<uint16_t*>(t.data) + first, t.column, f16_narrow); break;
    case DType::bf16:
      narrow_row(src, n, static_cast<uint16_t*>(t.data) + first, t.column, [](float x) { return float_to_bf16(x); });
      break;
    default: break;
  }
}

// Rounds x in [-1, 1] as E4M3 rounds 256 * x, to nearest even; NaN stays NaN. If |x| is at least 2^-14, the result has
// four significant bits. If |x| is smaller, the result is a multiple of 2^-17. To round to such a unit, the function
// adds and subtracts a number whose unit in the last place is this unit. There is no branch, so that loops vectorise.
inline float nearest_e4m3_weight(float x) {
  const uint32_t exponent = detail::bits_of(x) & 0x7f800000u, least = 0x38800000u;
  const float shift = detail::float_of(exponent > least ? exponent : least) * 0x1.8p20f;
  return (x + shift) - shift;
}

// Rounds weights to one E4M3 number, or to the sum of two. The second number holds the rounding error of the first and
// can be negative.
inline void round_weights(int terms, int64_t n, float* w) {
  if (terms == 1) {
    for (int64_t i = 0; i < n; ++i) w[i] = nearest_e4m3_weight(w[i]);
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    const float high = nearest_e4m3_weight(w[i]);
    w[i] = high + nearest_e4m3_weight(w[i] - high);
  }
}

inline bool is_finite(float x) { return (detail::bits_of(x) & 0x7f800000u) != 0x7f800000u; }

}  // namespace
}  // namespace rapt::cpu
