// Operations on one vector of floats: Highway in static mode if its headers are available, else GCC vectors of four.
// Included only by the isa_*.cpp units, each compiled for its own instruction set. Everything has internal linkage, so
// that the linker cannot use the code of one instruction set for another.
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
// a > b ? a : b; b if either is NaN.
#if HWY_ARCH_X86
inline Vec max(Vec a, Vec b) { return hn::Max(a, b); }
#else
inline Vec max(Vec a, Vec b) { return hn::IfThenElse(hn::Gt(a, b), a, b); }
#endif
inline Vec zero_if_equal(Vec x, Vec value) { return hn::IfThenZeroElse(hn::Eq(x, value), x); }
inline Vec replace_where_zero(Vec test, Vec a, Vec b) { return hn::IfThenElse(hn::Eq(test, zero()), a, b); }
// Shifts the low 9 bits of each lane into the sign and exponent fields.
inline Vec low_bits_to_exponent(Vec x) {
  const hn::RebindToUnsigned<FloatTag> bits;
  return hn::BitCast(float_tag, hn::ShiftLeft<23>(hn::BitCast(bits, x)));
}
inline float reduce_add(Vec x) { return hn::GetLane(hn::SumOfLanes(float_tag, x)); }
inline float reduce_max(Vec x) { return hn::GetLane(hn::MaxOfLanes(float_tag, x)); }

// Converts 2 * lanes contiguous elements to float and multiplies by factor. Uses f16 conversion instructions, which
// subnormals do not slow down.
#define RAPT_VECTOR_WIDENING 1
struct Pair {
  Vec first, second;
};
using Halves = hn::Repartition<uint16_t, FloatTag>;
inline Pair widen_halves(hn::Vec<Halves> x, Vec factor) {
  const hn::Half<Halves> half;
  const hn::Rebind<hwy::float16_t, FloatTag> f16;
  return {mul(hn::PromoteTo(float_tag, hn::BitCast(f16, hn::LowerHalf(half, x))), factor),
          mul(hn::PromoteTo(float_tag, hn::BitCast(f16, hn::UpperHalf(half, x))), factor)};
}
struct FromF16 {
  static Pair widen(const uint16_t* src, Vec factor) { return widen_halves(hn::LoadU(Halves(), src), factor); }
};
using Bytes = hn::Rebind<uint8_t, Halves>;
struct FromE5m2 {
  static Pair widen(const uint8_t* src, Vec factor) {
    return widen_halves(hn::ShiftLeft<8>(hn::PromoteTo(Halves(), hn::LoadU(Bytes(), src))), factor);
  }
};
// E4M3 bits, moved into f16, are the number times 2^-8, also for subnormals; factor must include 2^8. NaN is not
// preserved: check any_e4m3_nan first.
struct FromE4m3Over256 {
  static Pair widen(const uint8_t* src, Vec factor) {
    const hn::RebindToSigned<Halves> with_sign;
    const hn::RebindToSigned<Bytes> codes;
    const auto wide = hn::PromoteTo(with_sign, hn::BitCast(codes, hn::LoadU(Bytes(), src)));
    return widen_halves(hn::And(hn::BitCast(Halves(), hn::ShiftLeft<7>(wide)), hn::Set(Halves(), uint16_t{0xbfff})),
                        factor);
  }
};
// high + low = 1 / 255 almost exactly, so that the quotient by 255 is rounded only once.
struct FromSim8 {
  static Vec widen_one(const uint8_t* src, Vec factor) {
    constexpr float high = 1.0f / 255.0f, low = static_cast<float>(1.0 / 255.0 - static_cast<double>(high));
    const hn::Rebind<uint8_t, FloatTag> bytes;
    const hn::RebindToSigned<FloatTag> integers;
    const Vec code = hn::ConvertTo(float_tag, hn::PromoteTo(integers, hn::LoadU(bytes, src)));
    const Vec dividend = fma(code, splat(896.0f), splat(-114240.0f));
    return mul(fma(dividend, splat(high), mul(dividend, splat(low))), factor);
  }
  static Pair widen(const uint8_t* src, Vec factor) { return {widen_one(src, factor), widen_one(src + lanes, factor)}; }
};
// Returns whether there is a NaN among n >= 2 * lanes codes. Doubling a code drops its sign; NaN is then the largest
// code.
inline bool any_e4m3_nan(const uint8_t* src, int64_t n) {
  constexpr int64_t width = 2 * lanes;
  const hn::CappedTag<uint8_t, width> tag;
  auto largest = hn::Zero(tag);
  const auto see = [&](const uint8_t* at) {
    const auto codes = hn::LoadU(tag, at);
    largest = hn::Max(largest, hn::Add(codes, codes));
  };
  for (int64_t i = width; i <= n; i += width) see(src + i - width);
  if (n % width != 0) see(src + n - width);
  return !hn::AllFalse(tag, hn::Eq(largest, hn::Set(tag, uint8_t{0xfe})));
}
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
inline Vec replace_where_zero(Vec test, Vec a, Vec b) { return test == zero() ? a : b; }
inline Vec low_bits_to_exponent(Vec x) { return __builtin_bit_cast(Vec, __builtin_bit_cast(UintVec, x) << 23); }
inline float reduce_add(Vec x) { return (x[0] + x[1]) + (x[2] + x[3]); }
inline float reduce_max(Vec x) {
  const float a = x[0] > x[1] ? x[0] : x[1], b = x[2] > x[3] ? x[2] : x[3];
  return a > b ? a : b;
}
#endif

constexpr float exp2_coefficients[] = {1.0f,           0.693147182f,  0.240226507f,   0.0555032715f,
                                       0.00961805694f, 0.0013400428f, 0.000154614449f};

// exp(x) for x <= 0 or NaN. Exactly 0 for -inf and below -88, exactly 1 for 0, NaN for NaN. Relative error below 2e-7
// near 0. Method: y = x log2 e = n + f with integral n and |f| <= 1/2, so that e^x = 2^n * 2^f. Adding 1.5 * 2^23 + 127
// rounds y to an integer and leaves n + 127 in the low bits of the sum. Shifted into the exponent field these are 2^n
// (0 for n = -127). f = fma(x, log2 e, -n) has a single rounding. 2^f is the Chebyshev interpolant of degree 6 on
// [-1/2, 1/2].
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

#if defined(RAPT_HAVE_HIGHWAY) && !defined(RAPT_SCALAR_ISA) && HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
// Calls put(c, 0, column c) for a 16x16 block. 64 shuffles: 4x4 transposes within 128-bit blocks, then blocks are
// exchanged between vectors.
template <class Put>
inline void transpose_16x16(const float* src, int64_t src_stride, const Put& put) {
  const hn::Repartition<double, FloatTag> pairs;
  auto as_pairs = [&](Vec x) { return hn::BitCast(pairs, x); };
  Vec quad[4][4];  // quad[g][j]: block b holds column 4b + j of rows 4g .. 4g + 3
  for (int g = 0; g < 4; ++g) {
    const float* rows = src + 4 * g * src_stride;
    const Vec a = load(rows), b = load(rows + src_stride), c = load(rows + 2 * src_stride),
              d = load(rows + 3 * src_stride);
    const auto ab_low = as_pairs(hn::InterleaveLower(float_tag, a, b)),
               ab_high = as_pairs(hn::InterleaveUpper(float_tag, a, b));
    const auto cd_low = as_pairs(hn::InterleaveLower(float_tag, c, d)),
               cd_high = as_pairs(hn::InterleaveUpper(float_tag, c, d));
    quad[g][0] = hn::BitCast(float_tag, hn::InterleaveLower(pairs, ab_low, cd_low));
    quad[g][1] = hn::BitCast(float_tag, hn::InterleaveUpper(pairs, ab_low, cd_low));
    quad[g][2] = hn::BitCast(float_tag, hn::InterleaveLower(pairs, ab_high, cd_high));
    quad[g][3] = hn::BitCast(float_tag, hn::InterleaveUpper(pairs, ab_high, cd_high));
  }
  auto even_blocks = [](Vec a, Vec b) { return hn::OddEvenBlocks(hn::SwapAdjacentBlocks(b), a); };  // a0 b0 a2 b2
  auto odd_blocks = [](Vec a, Vec b) { return hn::OddEvenBlocks(b, hn::SwapAdjacentBlocks(a)); };   // a1 b1 a3 b3
  for (int j = 0; j < 4; ++j) {
    const Vec low_even = even_blocks(quad[0][j], quad[1][j]), low_odd = odd_blocks(quad[0][j], quad[1][j]);
    const Vec high_even = even_blocks(quad[2][j], quad[3][j]), high_odd = odd_blocks(quad[2][j], quad[3][j]);
    put(j, 0, hn::ConcatLowerLower(float_tag, high_even, low_even));
    put(4 + j, 0, hn::ConcatLowerLower(float_tag, high_odd, low_odd));
    put(8 + j, 0, hn::ConcatUpperUpper(float_tag, high_even, low_even));
    put(12 + j, 0, hn::ConcatUpperUpper(float_tag, high_odd, low_odd));
  }
}
// dst[c][r] = src[r][c].
inline void transpose_16x16(const float* src, int64_t src_stride, float* dst, int64_t dst_stride) {
  transpose_16x16(src, src_stride, [&](int c, int, Vec column) { store(column, dst + c * dst_stride); });
}
#else
inline void transpose_16x16(const float* src, int64_t src_stride, float* dst, int64_t dst_stride) {
  for (int c = 0; c < 16; c += 4)
    for (int r = 0; r < 16; r += 4)
      transpose_4x4(src + r * src_stride + c, src_stride, dst + c * dst_stride + r, dst_stride);
}
// Calls put(c, r, rows r .. r + lanes - 1 of column c).
template <class Put>
inline void transpose_16x16(const float* src, int64_t src_stride, const Put& put) {
  alignas(64) float columns[16 * 16];
  transpose_16x16(src, src_stride, columns, 16);
  for (int c = 0; c < 16; ++c)
    for (int r = 0; r < 16; r += lanes) put(c, r, load(columns + c * 16 + r));
}
#endif

}  // namespace
}  // namespace rapt::cpu
