// Conversions between storage formats and float, fast exp2 and log2: one function for each PTX instruction (PTX ISA,
// "Data Movement and Conversion Instructions: cvt" and "Floating Point: ex2, lg2"). Each function has a host version
// with the same results, so that tests can run the kernels on a CPU.
#pragma once

#include "shared/dtype.h"
#include "shared/params.h"

namespace rapt {

struct Float2 {
  float x, y;
};

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
inline unsigned short pack_e4m3x2(float low, float high) {  // sm_89
  unsigned short y;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(y) : "f"(high), "f"(low));
  return y;
}
inline unsigned short pack_e5m2x2(float low, float high) {  // sm_89
  unsigned short y;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(y) : "f"(high), "f"(low));
  return y;
}
#else
// E4M3 bits, moved into f16, are the number times 2^-8, also for subnormals. NaN is the code after the largest number.
// Only this code overflows when it is multiplied by 36000; infinity * 0 then gives NaN.
inline unsigned e4m3x2_to_f16x2(unsigned short x) {
  const unsigned spread = __byte_perm(x, 0, 0x1404);
  const unsigned small = (spread & 0x80008000u) | (spread >> 1 & 0x3f803f80u);
  unsigned y;
  asm("{.reg .b32 t;\n mul.rn.f16x2 t, %1, %2;\n mul.rn.f16x2 %0, %1, %3;\n fma.rn.f16x2 %0, t, %4, %0;}"
      : "=&r"(y)
      : "r"(small), "r"(0x78657865u), "r"(0x5c005c00u), "r"(0u));
  return y;
}
inline unsigned short pack_e4m3x2(float low, float high) {
  return static_cast<unsigned short>(float_to_e4m3(low) | float_to_e4m3(high) << 8);
}
inline unsigned short pack_e5m2x2(float low, float high) {
  return static_cast<unsigned short>(float_to_e5m2(low) | float_to_e5m2(high) << 8);
}
#endif
inline unsigned byte_perm(unsigned x, unsigned y, unsigned selector) { return __byte_perm(x, y, selector); }
// Returns max(|x|, |y|) for both halves. If one value is NaN, the result is the other value.
template <DType type>
inline unsigned max_magnitude2(unsigned x, unsigned y) {  // sm_80
  unsigned most;
  if constexpr (type == DType::f16)
    asm("{.reg .b32 s, t;\n abs.f16x2 s, %1;\n abs.f16x2 t, %2;\n max.f16x2 %0, s, t;}" : "=r"(most) : "r"(x), "r"(y));
  else
    asm("max.bf16x2 %0, %1, %2;" : "=r"(most) : "r"(x & 0x7fff7fffu), "r"(y & 0x7fff7fffu));
  return most;
}
// 2^x with an error of at most 2 ulp. Subnormal results become 0, 2^-inf = 0, NaN stays NaN.
// Returns sum + 0 * x for both halves: a half becomes NaN if x is not finite there. If sum is 0 and x is finite, the
// result is 0.
template <DType type>
inline unsigned nan_where_not_finite2(unsigned x, unsigned sum) {  // sm_80
  unsigned y;
  if constexpr (type == DType::f16)
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(x), "r"(0u), "r"(sum));
  else
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(x), "r"(0u), "r"(sum));
  return y;
}
inline float multiply_toward_zero(float x, float y) { return __fmul_rz(x, y); }
inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// log2(x) with an absolute error of at most 2^-22 for x >= 1.
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
inline unsigned e4m3x2_to_f16x2(unsigned short x) {
  return f32_to_f16(e4m3_to_float(static_cast<unsigned char>(x))) |
         unsigned{f32_to_f16(e4m3_to_float(static_cast<unsigned char>(x >> 8)))} << 16;
}
inline unsigned short pack_e4m3x2(float low, float high) {
  return static_cast<unsigned short>(float_to_e4m3(low) | float_to_e4m3(high) << 8);
}
inline unsigned short pack_e5m2x2(float low, float high) {
  return static_cast<unsigned short>(float_to_e5m2(low) | float_to_e5m2(high) << 8);
}
// Selects four of the eight bytes of x (0 to 3) and y (4 to 7). Each hexadecimal digit of `selector`, from the lowest
// on, is the number of one byte.
inline unsigned byte_perm(unsigned x, unsigned y, unsigned selector) {
  const unsigned long long bytes = x | static_cast<unsigned long long>(y) << 32;
  unsigned result = 0;
  for (unsigned i = 0; i < 4; ++i)
    result |= static_cast<unsigned>(bytes >> (selector >> 4 * i & 7u) * 8 & 0xffu) << 8 * i;
  return result;
}
template <DType type>
inline unsigned max_magnitude2(unsigned x, unsigned y) {
  constexpr unsigned infinity = type == DType::f16 ? 0x7c00u : 0x7f80u;
  unsigned most = 0;
  for (int shift = 0; shift < 32; shift += 16) {
    const unsigned a = x >> shift & 0x7fffu, b = y >> shift & 0x7fffu;
    most |= (a > infinity || (a < b && b <= infinity) ? b : a) << shift;
  }
  return most;
}
template <DType type>
inline unsigned nan_where_not_finite2(unsigned x, unsigned sum) {
  constexpr unsigned infinity = type == DType::f16 ? 0x7c00u : 0x7f80u;
  for (int shift = 0; shift < 32; shift += 16)
    if ((x >> shift & infinity) == infinity) sum |= 0x7fffu << shift;
  return sum;
}
namespace detail {
// Rounds toward zero. A finite number beyond the range becomes the largest finite float.
inline float truncated_to_float(double x) {
  const float y = static_cast<float>(x);
  return __builtin_fabs(y) > __builtin_fabs(x) ? float_of(bits_of(y) - 1) : y;
}
}  // namespace detail
inline float multiply_toward_zero(float x, float y) { return detail::truncated_to_float(double{x} * y); }
inline float exp2_approx(float x) {
  const float y = __builtin_exp2f(x);
  return y < __FLT_MIN__ ? 0.0f : y;
}
inline float log2_approx(float x) { return __builtin_log2f(x); }

#endif

// Returns x, rounded to TF32: the last 13 bits are 0. The factor adds 3/8 to 3/4 of the last kept bit, so that the
// truncation rounds nearly to nearest. The multiplication rounds toward zero. So finite numbers stay finite.
inline float round_to_tf32(float x) {
  constexpr float up = 1.0f + 1.5f * 0x1p-12f;
  return detail::float_of(detail::bits_of(multiply_toward_zero(x, up)) & 0xffffe000u);
}

inline float e5m2_to_f32(unsigned char x) {
  return f16_to_f32(static_cast<unsigned short>(x << 8));  // E5M2 is the high byte of f16
}

inline float e4m3_to_f32(unsigned char x) { return f16_to_f32(static_cast<unsigned short>(e4m3x2_to_f16x2(x))); }

// Converts the two FP8 values in the low half of `codes` to two 16-bit values. Exact: f16 and bf16 represent all FP8.
template <DType from, DType to>
inline unsigned widen2(unsigned codes) {
  static_assert(is_tensor_core_fp8(from) && is_16bit(to));
  unsigned f16x2 = 0;
  if constexpr (from == DType::e5m2)
    f16x2 = byte_perm(codes, 0, 0x1404);  // E5M2 is the high byte of f16
  else
    f16x2 = e4m3x2_to_f16x2(static_cast<unsigned short>(codes));
  if constexpr (to == DType::f16) return f16x2;
  return pack_bf16x2(f16_to_f32(static_cast<unsigned short>(f16x2)),
                     f16_to_f32(static_cast<unsigned short>(f16x2 >> 16)));
}

// Converts four FP8 values; the lower two go to `low`.
template <DType from, DType to>
inline void widen4(unsigned codes, unsigned& low, unsigned& high) {
#if defined(__CUDACC__) && __CUDA_ARCH__ >= 890
  if constexpr (from == DType::e4m3 && to == DType::f16) {  // reads the register halves without a move
    asm("{.reg .b16 l, h;\n mov.b32 {l, h}, %2;\n cvt.rn.f16x2.e4m3x2 %0, l;\n cvt.rn.f16x2.e4m3x2 %1, h;}"
        : "=r"(low), "=r"(high)
        : "r"(codes));
    return;
  }
#endif
  low = widen2<from, to>(codes), high = widen2<from, to>(codes >> 16);
}

// Returns whether an f32, 16-bit or FP8 bit pattern is neither infinite nor NaN.
template <DType t>
inline bool is_finite_code(unsigned code) {
  if constexpr (t == DType::f32) return (code & 0x7f800000u) != 0x7f800000u;
  if constexpr (t == DType::e4m3) return (code & 0x7fu) != 0x7fu;
  constexpr unsigned exponent = t == DType::f16 ? 0x7c00u : t == DType::bf16 ? 0x7f80u : 0x7cu;
  return (code & exponent) != exponent;
}

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
    return t == DType::e4m3 ? e4m3_to_f32(code) : t == DType::e5m2 ? e5m2_to_f32(code) : code_to_float(t, code);
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
