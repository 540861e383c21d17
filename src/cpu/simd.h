// A dozen operations on one vector of floats: Highway in static mode where its headers exist, GCC vectors of four else.
// Included only by the isa_*.cpp units, each compiled for its own instruction set; everything has internal linkage, so
// that the linker can never hand one instruction set's code to another.
#pragma once

#include <stdint.h>

#if defined(RAPT_HAVE_HIGHWAY) && !defined(RAPT_SCALAR_ISA)
#include <hwy/highway.h>
#endif

namespace rapt::cpu {
namespace {

#if defined(RAPT_HAVE_HIGHWAY) && !defined(RAPT_SCALAR_ISA)
namespace hn = hwy::HWY_NAMESPACE;
using FloatTag = hn::ScalableTag<float>;
using Vec = hn::Vec<FloatTag>;
constexpr FloatTag float_tag;
constexpr int lanes = HWY_LANES(float);

inline Vec zero() { return hn::Zero(float_tag); }
inline Vec splat(float x) { return hn::Set(float_tag, x); }
inline Vec load(const float* p) { return hn::LoadU(float_tag, p); }
inline void store(Vec x, float* p) { hn::StoreU(x, float_tag, p); }
inline Vec add(Vec a, Vec b) { return hn::Add(a, b); }
inline Vec sub(Vec a, Vec b) { return hn::Sub(a, b); }
inline Vec mul(Vec a, Vec b) { return hn::Mul(a, b); }
inline Vec fma(Vec a, Vec b, Vec c) { return hn::MulAdd(a, b, c); }  // a * b + c
// a > b ? a : b; the second operand where either is NaN.
#if HWY_ARCH_X86
inline Vec max(Vec a, Vec b) { return hn::Max(a, b); }
#else
inline Vec max(Vec a, Vec b) { return hn::IfThenElse(hn::Gt(a, b), a, b); }
#endif
inline Vec zero_if_equal(Vec x, Vec value) { return hn::IfThenZeroElse(hn::Eq(x, value), x); }
// The low 9 bits of each lane moved to the exponent (and sign) field.
inline Vec low_bits_to_exponent(Vec x) {
  const hn::RebindToUnsigned<FloatTag> bits;
  return hn::BitCast(float_tag, hn::ShiftLeft<23>(hn::BitCast(bits, x)));
}
inline float reduce_add(Vec x) { return hn::GetLane(hn::SumOfLanes(float_tag, x)); }
inline float reduce_max(Vec x) { return hn::GetLane(hn::MaxOfLanes(float_tag, x)); }
#else
typedef float Vec __attribute__((vector_size(16)));
typedef uint32_t UintVec __attribute__((vector_size(16)));
constexpr int lanes = 4;

inline Vec zero() { return Vec{0, 0, 0, 0}; }
inline Vec splat(float x) { return Vec{x, x, x, x}; }
inline Vec load(const float* p) {
  Vec x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}
inline void store(Vec x, float* p) { __builtin_memcpy(p, &x, sizeof x); }
inline Vec add(Vec a, Vec b) { return a + b; }
inline Vec sub(Vec a, Vec b) { return a - b; }
inline Vec mul(Vec a, Vec b) { return a * b; }
inline Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
inline Vec max(Vec a, Vec b) { return a > b ? a : b; }
inline Vec zero_if_equal(Vec x, Vec value) { return x == value ? zero() : x; }
inline Vec low_bits_to_exponent(Vec x) { return __builtin_bit_cast(Vec, __builtin_bit_cast(UintVec, x) << 23); }
inline float reduce_add(Vec x) { return (x[0] + x[1]) + (x[2] + x[3]); }
inline float reduce_max(Vec x) {
  const float a = x[0] > x[1] ? x[0] : x[1], b = x[2] > x[3] ? x[2] : x[3];
  return a > b ? a : b;
}
#endif

constexpr float exp2_coefficients[] = {1.0f,           0.693147182f,  0.240226507f,   0.0555032715f,
                                       0.00961805694f, 0.0013400428f, 0.000154614449f};

// exp(x) for x <= 0 (and NaN): exactly 0 for -inf and below -88, NaN for NaN, exp(0) = 1 exactly; relative error below
// 2e-7 near 0. With y = x log2 e = n + f, n integral, |f| <= 1/2: e^x = 2^n * 2^f. Adding 1.5 * 2^23 + 127 to y rounds
// it to an integer and leaves n + 127 in the low bits of the sum, which moved into the exponent field are 2^n (0 for n
// = -127). f = fma(x, log2 e, -n) is rounded once; 2^f is the Chebyshev interpolant of degree 6 on [-1/2, 1/2].
inline Vec exp_negative(Vec x) {
  const Vec log2e = splat(1.44269504f), shift = splat(12583039.0f);
  x = max(splat(-88.0f), x);
  const Vec rounded = fma(x, log2e, shift);
  const Vec f = fma(x, log2e, sub(shift, rounded));
  Vec p = splat(exp2_coefficients[6]);
  p = fma(p, f, splat(exp2_coefficients[5]));
  p = fma(p, f, splat(exp2_coefficients[4]));
  p = fma(p, f, splat(exp2_coefficients[3]));
  p = fma(p, f, splat(exp2_coefficients[2]));
  p = fma(p, f, splat(exp2_coefficients[1]));
  p = fma(p, f, splat(exp2_coefficients[0]));
  return mul(p, low_bits_to_exponent(rounded));
}

// dst[c][r] = src[r][c] of a 4x4 block; strides in floats.
inline void transpose_4x4(const float* src, int64_t src_stride, float* dst, int64_t dst_stride) {
  typedef float Quad __attribute__((vector_size(16)));
  auto row = [&](int r) {
    Quad x;
    __builtin_memcpy(&x, src + r * src_stride, sizeof x);
    return x;
  };
  auto put = [&](int c, Quad x) { __builtin_memcpy(dst + c * dst_stride, &x, sizeof x); };
  const Quad a = row(0), b = row(1), c = row(2), d = row(3);
  const Quad ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5), ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const Quad cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5), cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  put(0, __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5));
  put(1, __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7));
  put(2, __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5));
  put(3, __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7));
}

}  // namespace
}  // namespace rapt::cpu
