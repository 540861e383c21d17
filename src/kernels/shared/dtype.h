// DType, and the scalar conversions between storage formats and float. Shared by host code and kernels. Includes
// nothing outside shared/.
#pragma once

namespace rapt {

enum class DType : unsigned char {
  none = 0,
  f32 = 1,
  f16 = 2,
  bf16 = 3,
  e4m3 = 4,
  e5m2 = 5,
  sim8 = 6,
  u8 = 7,
  i32 = 8,
  i64 = 9
};

inline constexpr int dtype_count = 10;

constexpr int bytes_of(DType t) {
  switch (t) {
    case DType::f32:
    case DType::i32: return 4;
    case DType::f16:
    case DType::bf16: return 2;
    case DType::e4m3:
    case DType::e5m2:
    case DType::sim8:
    case DType::u8: return 1;
    case DType::i64: return 8;
    case DType::none: break;
  }
  return 0;
}

constexpr bool is_fp8(DType t) { return t == DType::e4m3 || t == DType::e5m2 || t == DType::sim8; }
// FP8 types that tensor cores multiply. f16 and bf16 represent them exactly.
constexpr bool is_tensor_core_fp8(DType t) { return t == DType::e4m3 || t == DType::e5m2; }
constexpr bool is_16bit(DType t) { return t == DType::f16 || t == DType::bf16; }
constexpr bool is_attention_input(DType t) { return t == DType::f32 || is_16bit(t) || is_fp8(t); }
constexpr bool is_attention_output(DType t) { return t == DType::f32 || is_16bit(t); }

constexpr const char* name_of(DType t) {
  constexpr const char* names[dtype_count] = {"none", "f32", "f16", "bf16", "e4m3", "e5m2", "sim8", "u8", "i32", "i64"};
  return names[static_cast<unsigned char>(t)];
}

namespace detail {
constexpr unsigned bits_of(float x) { return __builtin_bit_cast(unsigned, x); }
constexpr float float_of(unsigned bits) { return __builtin_bit_cast(float, bits); }

// Converts a small binary float with IEEE-like subnormals to float, exactly. Special says what codes with the largest
// exponent mean. ieee: inf and NaN. one_nan (E4M3): numbers, except one pattern that is NaN.
enum class Special { ieee, one_nan };

template <int exponent_bits, int mantissa_bits, Special special>
constexpr float widen(unsigned code) {
  constexpr unsigned exponent_mask = (1u << exponent_bits) - 1, mantissa_mask = (1u << mantissa_bits) - 1;
  constexpr int bias = (1 << (exponent_bits - 1)) - 1;
  const unsigned sign = (code >> (exponent_bits + mantissa_bits)) << 31;
  const unsigned exponent = (code >> mantissa_bits) & exponent_mask, mantissa = code & mantissa_mask;
  if (special == Special::one_nan && exponent == exponent_mask && mantissa == mantissa_mask)
    return float_of(sign | 0x7fc00000u);
  if (special == Special::ieee && exponent == exponent_mask)
    return float_of(sign | 0x7f800000u | (mantissa << (23 - mantissa_bits)) | (mantissa ? 0x400000u : 0u));
  if (exponent == 0) {  // subnormal: mantissa * 2^(1 - bias - mantissa_bits), exact in float
    const float unit = float_of(static_cast<unsigned>(127 + 1 - bias - mantissa_bits) << 23);
    const float magnitude = static_cast<float>(mantissa) * unit;
    return float_of(bits_of(magnitude) | sign);
  }
  return float_of(sign | ((exponent + 127 - bias) << 23) | (mantissa << (23 - mantissa_bits)));
}

// Rounds to nearest even. On overflow the result is inf, or the largest finite value if `saturate` is true. `saturate`
// is the FP8 rule of docs/semantics.md: finite values and infinities saturate, NaN stays NaN.
template <int exponent_bits, int mantissa_bits, Special special, bool saturate>
constexpr unsigned narrow(float x) {
  constexpr unsigned exponent_mask = (1u << exponent_bits) - 1, mantissa_mask = (1u << mantissa_bits) - 1;
  constexpr int bias = (1 << (exponent_bits - 1)) - 1;
  constexpr unsigned top = exponent_mask << mantissa_bits;
  constexpr unsigned largest = special == Special::one_nan ? (top | mantissa_mask) - 1 : top - 1;
  const unsigned bits = bits_of(x), sign = (bits >> 31) << (exponent_bits + mantissa_bits);
  const unsigned magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u)
    return sign | (special == Special::one_nan ? top | mantissa_mask : top | (1u << (mantissa_bits - 1)));
  unsigned code = 0;
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  if (magnitude == 0x7f800000u) {
    code = largest + 1;
  } else if (exponent < 1 - bias) {  // subnormal result: shift the full significand into place
    const int shift = 23 - mantissa_bits + (1 - bias - exponent);
    if (shift < 26) {
      const unsigned significand = (magnitude & 0x7fffffu) | (magnitude >> 23 ? 0x800000u : 0u);
      const unsigned kept = shift < 32 ? significand >> shift : 0u, rest = significand & ((1u << shift) - 1),
                     half = 1u << (shift - 1);
      code = kept + (rest > half || (rest == half && (kept & 1)) ? 1u : 0u);
    }
  } else {
    const unsigned rebased = magnitude - (static_cast<unsigned>(127 - bias) << 23);
    constexpr int shift = 23 - mantissa_bits;
    const unsigned kept = rebased >> shift, rest = rebased & ((1u << shift) - 1), half = 1u << (shift - 1);
    code = kept + (rest > half || (rest == half && (kept & 1)) ? 1u : 0u);
  }
  if (code > largest) code = saturate ? largest : (special == Special::ieee ? top : top | mantissa_mask);
  return sign | code;
}
}  // namespace detail

constexpr float f16_to_float(unsigned short c) { return detail::widen<5, 10, detail::Special::ieee>(c); }
constexpr float bf16_to_float(unsigned short c) { return detail::float_of(static_cast<unsigned>(c) << 16); }
constexpr float e4m3_to_float(unsigned char c) { return detail::widen<4, 3, detail::Special::one_nan>(c); }
constexpr float e5m2_to_float(unsigned char c) { return detail::widen<5, 2, detail::Special::ieee>(c); }
// Computes -448 + c * 896 / 255 with a single rounding, so that FMA contraction cannot change the bits.
constexpr float sim8_to_float(unsigned char c) { return static_cast<float>(896 * c - 114240) / 255.0f; }

constexpr unsigned short float_to_f16(float x) {
  return static_cast<unsigned short>(detail::narrow<5, 10, detail::Special::ieee, false>(x));
}
constexpr unsigned short float_to_bf16(float x) {
  const unsigned bits = detail::bits_of(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<unsigned short>((bits >> 16) | 0x40u);
  return static_cast<unsigned short>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
constexpr unsigned char float_to_e4m3(float x) {
  return static_cast<unsigned char>(detail::narrow<4, 3, detail::Special::one_nan, true>(x));
}
constexpr unsigned char float_to_e5m2(float x) {
  return static_cast<unsigned char>(detail::narrow<5, 2, detail::Special::ieee, true>(x));
}
// sim8 has no NaN. A NaN becomes the code of 0, which is 128 (docs/semantics.md).
constexpr unsigned char float_to_sim8(float x) {
  if (x != x) return 128;
  const float clamped = x < -448.0f ? -448.0f : x > 448.0f ? 448.0f : x;
  const float scaled = (clamped + 448.0f) * 255.0f / 896.0f;  // the only tie is x = 0: 127.5 rounds to 128
  const int low = static_cast<int>(scaled);
  const float rest = scaled - static_cast<float>(low);
  return static_cast<unsigned char>(low + (rest > 0.5f || (rest == 0.5f && (low & 1)) ? 1 : 0));
}

// Returns the number that code `c` of an 8-bit format stands for.
constexpr float code_to_float(DType t, unsigned char c) {
  switch (t) {
    case DType::e4m3: return e4m3_to_float(c);
    case DType::e5m2: return e5m2_to_float(c);
    case DType::sim8: return sim8_to_float(c);
    default: return 0.0f;
  }
}
constexpr unsigned char float_to_code(DType t, float x) {
  switch (t) {
    case DType::e4m3: return float_to_e4m3(x);
    case DType::e5m2: return float_to_e5m2(x);
    case DType::sim8: return float_to_sim8(x);
    default: return 0;
  }
}

// Loads element `index`.
inline float load_float(DType t, const void* data, long long index) {
  switch (t) {
    case DType::f32: return static_cast<const float*>(data)[index];
    case DType::f16: return f16_to_float(static_cast<const unsigned short*>(data)[index]);
    case DType::bf16: return bf16_to_float(static_cast<const unsigned short*>(data)[index]);
    default: return is_fp8(t) ? code_to_float(t, static_cast<const unsigned char*>(data)[index]) : 0.0f;
  }
}

inline void store_float(DType t, void* data, long long index, float x) {
  switch (t) {
    case DType::f32: static_cast<float*>(data)[index] = x; break;
    case DType::f16: static_cast<unsigned short*>(data)[index] = float_to_f16(x); break;
    case DType::bf16: static_cast<unsigned short*>(data)[index] = float_to_bf16(x); break;
    default:
      if (is_fp8(t)) static_cast<unsigned char*>(data)[index] = float_to_code(t, x);
  }
}

}  // namespace rapt
