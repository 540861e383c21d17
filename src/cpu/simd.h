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
inline Vec round(Vec x) { return hn::Round(x); }
// a > b ? a : b; the second operand where either is NaN.
#if HWY_ARCH_X86
inline Vec max(Vec a, Vec b) { return hn::Max(a, b); }
#else
inline Vec max(Vec a, Vec b) { return hn::IfThenElse(hn::Gt(a, b), a, b); }
#endif
inline Vec zero_if_equal(Vec x, Vec value) { return hn::IfThenZeroElse(hn::Eq(x, value), x); }
// 2^n for integral n in [-127, 127]; n = -127 gives 0.
inline Vec power_of_two(Vec n) {
  const hn::RebindToSigned<FloatTag> int_tag;
  return hn::BitCast(float_tag, hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(int_tag, n), hn::Set(int_tag, 127))));
}
inline float reduce_add(Vec x) { return hn::GetLane(hn::SumOfLanes(float_tag, x)); }
inline float reduce_max(Vec x) { return hn::GetLane(hn::MaxOfLanes(float_tag, x)); }
#else
typedef float Vec __attribute__((vector_size(16)));
typedef int32_t IntVec __attribute__((vector_size(16)));
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
// Adding and removing 1.5 * 2^23 rounds to nearest even for |x| < 2^22, which is all that exp needs.
inline Vec round(Vec x) {
  const Vec shift = splat(12582912.0f);
  return (x + shift) - shift;
}
inline Vec max(Vec a, Vec b) { return a > b ? a : b; }
inline Vec zero_if_equal(Vec x, Vec value) { return x == value ? zero() : x; }
inline Vec power_of_two(Vec n) {
  const IntVec bits = (__builtin_convertvector(n, IntVec) + 127) << 23;
  return __builtin_bit_cast(Vec, bits);
}
inline float reduce_add(Vec x) { return (x[0] + x[1]) + (x[2] + x[3]); }
inline float reduce_max(Vec x) {
  const float a = x[0] > x[1] ? x[0] : x[1], b = x[2] > x[3] ? x[2] : x[3];
  return a > b ? a : b;
}
#endif

// exp(x) for x <= 0 (and NaN): exactly 0 for -inf and below about -88, NaN for NaN, relative error below 1.5e-7.
// 2^(x log2 e) = 2^n * 2^f, |f| <= 1/2; log2 e * x is formed in two parts so that large |x| keeps its fraction.
inline Vec exp_negative(Vec x) {
  const Vec log2e = splat(1.44269504f), ln2_high = splat(0.693359375f), ln2_low = splat(-2.12194440e-4f);
  x = max(splat(-88.0f), x);  // exp(-88) rounds to 2^-127 below: flushed to 0
  const Vec n = round(mul(x, log2e));
  const Vec r = sub(sub(x, mul(n, ln2_high)), mul(n, ln2_low));
  // Taylor series of e^r on |r| <= ln2/2: the first omitted term, r^8/8!, is below 6e-9.
  Vec p = splat(1.0f / 5040.0f);
  p = fma(p, r, splat(1.0f / 720.0f));
  p = fma(p, r, splat(1.0f / 120.0f));
  p = fma(p, r, splat(1.0f / 24.0f));
  p = fma(p, r, splat(1.0f / 6.0f));
  p = fma(p, r, splat(0.5f));
  p = fma(p, r, splat(1.0f));
  p = fma(p, r, splat(1.0f));
  return mul(p, power_of_two(n));
}

}  // namespace
}  // namespace rapt::cpu
