// Rows of any storage format to float and back, written as plain branchless loops that compilers vectorise.
// Included only by the isa_*.cpp units (internal linkage). Same results as kernels/shared/dtype.h, element for element.
#pragma once

#include <stdint.h>

#include "cpu/attention_call.h"

namespace rapt::cpu {
namespace {

inline float f16_widen(uint16_t c) {
  const uint32_t magnitude = static_cast<uint32_t>(c & 0x7fffu) << 13;
  // Times 2^112 moves the exponent bias from 15 to 127 and makes subnormals right; inf and NaN are put back after.
  const uint32_t finite = detail::bits_of(detail::float_of(magnitude) * 0x1p112f);
  const uint32_t special = magnitude | 0x7f800000u | (magnitude > 0x0f800000u ? 0x400000u : 0u);
  const uint32_t sign = static_cast<uint32_t>(c & 0x8000u) << 16;
  return detail::float_of(sign | (magnitude >= 0x0f800000u ? special : finite));
}

inline float e4m3_widen(uint8_t c) {
  const uint32_t magnitude = static_cast<uint32_t>(c & 0x7fu) << 20;
  const uint32_t finite = detail::bits_of(detail::float_of(magnitude) * 0x1p120f);
  const uint32_t sign = static_cast<uint32_t>(c & 0x80u) << 24;
  return detail::float_of(sign | (magnitude == 0x07f00000u ? 0x7fc00000u : finite));
}

inline float e5m2_widen(uint8_t c) { return f16_widen(static_cast<uint16_t>(c << 8)); }

inline uint16_t f16_narrow(float x) {
  const uint32_t bits = detail::bits_of(x), magnitude = bits & 0x7fffffffu;
  // Normal results: round the 13 dropped bits to nearest even in integer arithmetic, then move the bias.
  const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // Subnormal results: adding 0.5 leaves the f16 code in the low bits, rounded by the addition itself.
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

// Row (b, h, s) of a tensor, `n` elements, widened to float.
inline void read_row(const TensorRef& t, int64_t b, int64_t h, int64_t s, int64_t n, float* dst) {
  const int64_t first = t.index(b, h, s);
  switch (t.dtype) {
    case DType::f32:
      widen_row(static_cast<const float*>(t.data) + first, t.column, n, dst, [](float x) { return x; });
      break;
    case DType::f16: widen_row(static_cast<const uint16_t*>(t.data) + first, t.column, n, dst, f16_widen); break;
    case DType::bf16:
      widen_row(static_cast<const uint16_t*>(t.data) + first, t.column, n, dst,
                [](uint16_t c) { return bf16_to_float(c); });
      break;
    case DType::e4m3: widen_row(static_cast<const uint8_t*>(t.data) + first, t.column, n, dst, e4m3_widen); break;
    case DType::e5m2: widen_row(static_cast<const uint8_t*>(t.data) + first, t.column, n, dst, e5m2_widen); break;
    case DType::sim8:
      widen_row(static_cast<const uint8_t*>(t.data) + first, t.column, n, dst,
                [](uint8_t c) { return sim8_to_float(c); });
      break;
    default: break;
  }
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

inline bool is_finite(float x) { return (detail::bits_of(x) & 0x7f800000u) != 0x7f800000u; }

}  // namespace
}  // namespace rapt::cpu
