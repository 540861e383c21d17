// Conversions between storage formats and float, fast exponentials and logarithms: one function for each PTX
// instruction. Included by every kernel. Each has a host twin of the same meaning (shared/dtype.h), so that tests can
// run kernels' text on a CPU. Instructions: PTX ISA, "Data Movement and Conversion Instructions: cvt" and "Floating
// Point: ex2, lg2".
#pragma once

#include "../shared/dtype.h"
#include "../shared/params.h"

namespace rapt {

#if defined(__CUDACC__)

inline float f16_to_f32(unsigned short x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}
inline unsigned short f32_to_f16(float x) {
  unsigned short y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}
inline unsigned short f32_to_bf16(float x) {  // sm_80
  unsigned short y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}
inline unsigned pack_f16x2(float low, float high) {  // sm_80
  unsigned y;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}
inline unsigned pack_bf16x2(float low, float high) {  // sm_80
  unsigned y;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}
#if __CUDA_ARCH__ >= 890
inline unsigned e4m3x2_to_f16x2(unsigned short x) {  // sm_89
  unsigned y;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(y) : "h"(x));
  return y;
}
#endif
// 2^x within 2 ulp; subnormal results are 0, 2^-inf = 0, NaN stays NaN.
inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// log2(x) within 2^-22 (absolute, for x of 1 and more).
inline float log2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

#else

inline float f16_to_f32(unsigned short x) { return f16_to_float(x); }
inline unsigned short f32_to_f16(float x) { return float_to_f16(x); }
inline unsigned short f32_to_bf16(float x) { return float_to_bf16(x); }
inline unsigned pack_f16x2(float low, float high) { return f32_to_f16(low) | unsigned{f32_to_f16(high)} << 16; }
inline unsigned pack_bf16x2(float low, float high) { return f32_to_bf16(low) | unsigned{f32_to_bf16(high)} << 16; }
inline float exp2_approx(float x) {
  const float y = __builtin_exp2f(x);
  return y < __FLT_MIN__ ? 0.0f : y;
}
inline float log2_approx(float x) { return __builtin_log2f(x); }

#endif

inline float e5m2_to_f32(unsigned char x) {
  return f16_to_f32(static_cast<unsigned short>(x << 8));
}  // f16's high byte

inline float e4m3_to_f32(unsigned char x) {
#if defined(__CUDACC__) && __CUDA_ARCH__ >= 890
  return f16_to_f32(static_cast<unsigned short>(e4m3x2_to_f16x2(x)));
#else
  // As an f16 with the exponent 8 too small, subnormals included; its only NaN is the top code.
  const unsigned short shifted = static_cast<unsigned short>((x & 0x80) << 8 | (x & 0x7f) << 7);
  return (x & 0x7f) == 0x7f ? detail::float_of(0x7fc00000u) : f16_to_f32(shifted) * 256.0f;
#endif
}

// Element `index` of a tensor of one format.
template <DType t>
inline float load_element(const void* data, index_t index) {
  static_assert(is_attention_input(t));
  if constexpr (t == DType::f32) {
    return static_cast<const float*>(data)[index];
  } else if constexpr (is_16bit(t)) {
    const unsigned short code = static_cast<const unsigned short*>(data)[index];
    return t == DType::f16 ? f16_to_f32(code) : bf16_to_float(code);
  } else {
    const unsigned char code = static_cast<const unsigned char*>(data)[index];
    return t == DType::e4m3 ? e4m3_to_f32(code) : t == DType::e5m2 ? e5m2_to_f32(code) : sim8_to_float(code);
  }
}

template <DType t>
inline void store_element(void* data, index_t index, float x) {
  static_assert(is_attention_output(t));
  if constexpr (t == DType::f32) {
    static_cast<float*>(data)[index] = x;
  } else {
    static_cast<unsigned short*>(data)[index] = t == DType::f16 ? f32_to_f16(x) : f32_to_bf16(x);
  }
}

}  // namespace rapt
