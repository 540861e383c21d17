// The loops of quantize_rows.h as branchless code that compilers vectorise. Compiled for the base instruction set and,
// on x86-64, also for AVX2. Each element gets the same result as with kernels/shared/dtype.h.
#include "cpu/quantize_rows.h"

#include "device/device.h"

namespace rapt::cpu {
namespace {

#define RAPT_ALWAYS_INLINE [[gnu::always_inline]] inline

namespace q = quantizing;
using detail::bits_of;
using detail::float_of;

// condition ? a : b by bit masks. With ?: next to float operations compilers emit branches and do not vectorise.
RAPT_ALWAYS_INLINE uint32_t select(bool condition, uint32_t a, uint32_t b) {
  const uint32_t mask = 0u - static_cast<uint32_t>(condition);
  return (a & mask) | (b & ~mask);
}

RAPT_ALWAYS_INLINE float widen_f16(uint16_t c) {
  const uint32_t magnitude = static_cast<uint32_t>(c & 0x7fffu) << 13;
  // A multiplication by 2^112 changes the exponent bias from 15 to 127, also for subnormals. inf and NaN are fixed up.
  const uint32_t finite = bits_of(float_of(magnitude) * 0x1p112f);
  const uint32_t special = magnitude | 0x7f800000u;
  return float_of(static_cast<uint32_t>(c & 0x8000u) << 16 | select(magnitude >= 0x0f800000u, special, finite));
}

template <class Code, class Widen>
RAPT_ALWAYS_INLINE void widen_all(const void* from, int64_t stride, int64_t n, float* to, Widen widen) {
  const auto* codes = static_cast<const Code*>(from);
  if (stride == 1)
    for (int64_t i = 0; i < n; ++i) to[i] = widen(codes[i]);
  else
    for (int64_t i = 0; i < n; ++i) to[i] = widen(codes[i * stride]);
}

RAPT_ALWAYS_INLINE void widen_row(DType dtype, const void* from, int64_t stride, int64_t n, float* to) {
  switch (dtype) {
    case DType::f32: return widen_all<float>(from, stride, n, to, [](float x) { return x; });
    case DType::f16: return widen_all<uint16_t>(from, stride, n, to, [](uint16_t c) { return widen_f16(c); });
    default:
      return widen_all<uint16_t>(from, stride, n, to,
                                 [](uint16_t c) { return float_of(static_cast<uint32_t>(c) << 16); });
  }
}

typedef float Quad __attribute__((vector_size(16)));

// Computes the butterfly rounds with strides 1 and 2, four channels at a time. A lane that computes a difference
// negates its own channel and adds the other one, which gives the same bits.
RAPT_ALWAYS_INLINE void first_rounds(float* x, int64_t n) {
  for (int64_t i = 0; i < n; i += 4) {
    Quad v;
    __builtin_memcpy(&v, x + i, sizeof v);
    v = Quad{v[1], v[0], v[3], v[2]} + v * Quad{1, -1, 1, -1};
    v = Quad{v[2], v[3], v[0], v[1]} + v * Quad{1, 1, -1, -1};
    __builtin_memcpy(x + i, &v, sizeof v);
  }
}

RAPT_ALWAYS_INLINE void rotate_row(float* x, int64_t n, int group, const float* signs) {
  for (int64_t i = 0; i < n; ++i) x[i] *= signs[i];
  if (group == 1) return;
  if (group == 2) {
    for (int64_t i = 0; i < n; i += 2) hadamard::transform(x + i, 2);
  } else {
    first_rounds(x, n);
    for (int64_t stride = 4; stride < group; stride *= 2)
      for (int64_t first = 0; first < n; first += 2 * stride) {
        float *low = x + first, *high = x + first + stride;
        for (int64_t i = 0; i < stride; i += 4) {
          Quad a, b;
          __builtin_memcpy(&a, low + i, sizeof a);
          __builtin_memcpy(&b, high + i, sizeof b);
          const Quad sum = a + b, difference = a - b;
          __builtin_memcpy(low + i, &sum, sizeof a);
          __builtin_memcpy(high + i, &difference, sizeof b);
        }
      }
  }
  const float factor = hadamard::factor_of(group);
  for (int64_t i = 0; i < n; ++i) x[i] *= factor;
}

RAPT_ALWAYS_INLINE void subtract_row(float* x, const float* mean, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] -= mean[i];
}

RAPT_ALWAYS_INLINE void add_finite_row(const float* __restrict x, int64_t n, double* __restrict sums,
                                       int64_t* __restrict counts) {
  for (int64_t i = 0; i < n; ++i) {
    const bool finite = q::is_finite(x[i]);
    sums[i] += static_cast<double>(float_of(select(finite, bits_of(x[i]), 0u)));
    counts[i] += finite;
  }
}

// The type is signed, because every instruction set has signed comparisons. Magnitudes have no sign bit.
RAPT_ALWAYS_INLINE int32_t magnitude_of(float x) {
  const auto magnitude = static_cast<int32_t>(bits_of(x) & 0x7fffffffu);
  return magnitude < static_cast<int32_t>(q::infinity_bits) ? magnitude : 0;
}

RAPT_ALWAYS_INLINE uint32_t amax_row(const float* x, int64_t n) {
  int32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int32_t magnitude = magnitude_of(x[i]);
    largest = magnitude > largest ? magnitude : largest;
  }
  return static_cast<uint32_t>(largest);
}

RAPT_ALWAYS_INLINE void amax_of_each_row(const float* __restrict x, int64_t n, uint32_t* __restrict largest) {
  for (int64_t i = 0; i < n; ++i) {
    const int32_t magnitude = magnitude_of(x[i]), before = static_cast<int32_t>(largest[i]);
    largest[i] = static_cast<uint32_t>(magnitude > before ? magnitude : before);
  }
}

// Converts to FP8, rounded to nearest even, saturated. For normal results, an integer addition rounds the dropped bits,
// then the exponent bias changes. For subnormal results, the addition of a power of two rounds, and leaves the FP8 bits
// in the low bits.
template <int mantissa_bits, int bias, uint32_t largest>
RAPT_ALWAYS_INLINE uint8_t fp8_code(float x) {
  constexpr int shift = 23 - mantissa_bits;
  constexpr uint32_t rebase = static_cast<uint32_t>(127 - bias) << 23, first_normal = rebase + (1u << 23);
  constexpr float unit = float_of(static_cast<uint32_t>(127 + 1 - bias - mantissa_bits + 23) << 23);
  const uint32_t bits = bits_of(x);
  const auto magnitude = static_cast<int32_t>(bits & 0x7fffffffu);
  const uint32_t held =
      static_cast<uint32_t>(magnitude < static_cast<int32_t>(largest) ? magnitude : static_cast<int32_t>(largest));
  const uint32_t normal = (held - rebase + ((1u << (shift - 1)) - 1) + ((held >> shift) & 1u)) >> shift;
  const uint32_t subnormal = bits_of(float_of(held) + unit) - bits_of(unit);
  const uint32_t finite = select(static_cast<int32_t>(held) < static_cast<int32_t>(first_normal), subnormal, normal);
  const uint32_t code = finite | ((bits >> 24) & 0x80u);
  return static_cast<uint8_t>(select(magnitude > static_cast<int32_t>(q::infinity_bits), q::nan_code, code));
}

// inverse(i): the inverse descale of element i.
template <class Inverse>
RAPT_ALWAYS_INLINE void encode_row(DType dtype, const float* __restrict x, int64_t n, Inverse inverse,
                                   uint8_t* __restrict codes) {
  switch (dtype) {
    case DType::e4m3:
      for (int64_t i = 0; i < n; ++i) codes[i] = fp8_code<3, 7, 0x43e00000u>(x[i] * inverse(i));
      break;
    case DType::e5m2:
      for (int64_t i = 0; i < n; ++i) codes[i] = fp8_code<2, 15, 0x47600000u>(x[i] * inverse(i));
      break;
    default:
      for (int64_t i = 0; i < n; ++i) codes[i] = q::sim8_code(x[i] * inverse(i));
  }
}

// Defines RowLoops for one instruction set. The macro parameter `attributes` cannot be parenthesised.
// NOLINTBEGIN(bugprone-macro-parentheses)
#define RAPT_ROW_LOOPS(set, attributes)                                                                                \
  attributes void widen_##set(DType t, const void* from, int64_t stride, int64_t n, float* to) {                       \
    widen_row(t, from, stride, n, to);                                                                                 \
  }                                                                                                                    \
  attributes void rotate_##set(float* x, int64_t n, int group, const float* signs) { rotate_row(x, n, group, signs); } \
  attributes void subtract_##set(float* x, const float* mean, int64_t n) { subtract_row(x, mean, n); }                 \
  attributes void add_finite_##set(const float* x, int64_t n, double* sums, int64_t* counts) {                         \
    add_finite_row(x, n, sums, counts);                                                                                \
  }                                                                                                                    \
  attributes uint32_t amax_##set(const float* x, int64_t n) { return amax_row(x, n); }                                 \
  attributes void amax_of_each_##set(const float* x, int64_t n, uint32_t* largest) {                                   \
    amax_of_each_row(x, n, largest);                                                                                   \
  }                                                                                                                    \
  attributes void encode_##set(DType t, const float* x, int64_t n, float inverse, uint8_t* codes) {                    \
    encode_row(                                                                                                        \
        t, x, n, [inverse](int64_t) __attribute__((always_inline)) { return inverse; }, codes);                        \
  }                                                                                                                    \
  attributes void encode_each_##set(DType t, const float* x, int64_t n, const float* inverses, uint8_t* codes) {       \
    encode_row(                                                                                                        \
        t, x, n, [inverses](int64_t i) __attribute__((always_inline)) { return inverses[i]; }, codes);                 \
  }                                                                                                                    \
  constexpr RowLoops loops_##set{widen_##set, rotate_##set,       subtract_##set, add_finite_##set,                    \
                                 amax_##set,  amax_of_each_##set, encode_##set,   encode_each_##set};
// NOLINTEND(bugprone-macro-parentheses)

RAPT_ROW_LOOPS(base, )
#if defined(__x86_64__)
RAPT_ROW_LOOPS(avx2, __attribute__((target("avx2"))))
#endif

}  // namespace

const RowLoops& row_loops() {
#if defined(__x86_64__)
  if (cpu_device().isa >= CpuIsa::avx2) return loops_avx2;
#endif
  return loops_base;
}

}  // namespace rapt::cpu
