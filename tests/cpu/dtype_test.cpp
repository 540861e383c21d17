// Tests the storage formats. Widening of every code is compared with a formula in double. Narrowing is tested at every
// code, at every midpoint between codes, and beside it. Overflow, infinities and NaN are tested, too. The formulas here
// are independent of dtype.h.
#include "kernels/shared/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>

#include "check/format.h"

namespace rapt {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

// A binary format: the numbers of exponent and mantissa bits, and the meaning of the largest exponent.
struct Format {
  std::string name;
  int exponent_bits, mantissa_bits;
  bool top_exponent_is_special;  // true (IEEE): infinity and NaN; false (E4M3): numbers, and NaN if all bits are 1
  bool saturates;                // overflow and infinities become the largest number
  std::function<float(unsigned)> widen;
  std::function<unsigned(float)> narrow;

  unsigned sign_bit() const { return 1u << (exponent_bits + mantissa_bits); }
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  unsigned exponent_of(unsigned code) const { return (code >> mantissa_bits) & ((1u << exponent_bits) - 1); }
  unsigned mantissa_of(unsigned code) const { return code & ((1u << mantissa_bits) - 1); }
  unsigned top_exponent() const { return (1u << exponent_bits) - 1; }
  bool is_nan(unsigned code) const {
    if (exponent_of(code) != top_exponent()) return false;
    return top_exponent_is_special ? mantissa_of(code) != 0 : mantissa_of(code) == (1u << mantissa_bits) - 1;
  }
  bool is_infinite(unsigned code) const {
    return top_exponent_is_special && exponent_of(code) == top_exponent() && mantissa_of(code) == 0;
  }
  unsigned largest() const {  // the code of the largest number
    unsigned code = sign_bit() - 1;
    while (is_nan(code) || is_infinite(code)) --code;
    return code;
  }

  // Returns (-1)^s * m * 2^(e - bias - mantissa_bits), where m includes the hidden bit. Subnormals have no hidden bit,
  // and the exponent of e = 1.
  double value(unsigned code) const {
    const int e = static_cast<int>(exponent_of(code));
    const double m = mantissa_of(code) + (e > 0 ? std::ldexp(1.0, mantissa_bits) : 0.0);
    const double magnitude = std::ldexp(m, (e > 0 ? e : 1) - bias() - mantissa_bits);
    return code & sign_bit() ? -magnitude : magnitude;
  }
  // The number that would follow the largest number if the format had more codes. It is needed for rounding at the end
  // of the range.
  double beyond() const { return 2 * value(largest()) - value(largest() - 1); }
};

const Format& format(const std::string& name) {
  static const Format formats[] = {
      {"f16", 5, 10, true, false, [](unsigned c) { return f16_to_float(static_cast<unsigned short>(c)); },
       [](float x) { return unsigned{float_to_f16(x)}; }},
      {"bf16", 8, 7, true, false, [](unsigned c) { return bf16_to_float(static_cast<unsigned short>(c)); },
       [](float x) { return unsigned{float_to_bf16(x)}; }},
      {"e4m3", 4, 3, false, true, [](unsigned c) { return e4m3_to_float(static_cast<unsigned char>(c)); },
       [](float x) { return unsigned{float_to_e4m3(x)}; }},
      {"e5m2", 5, 2, true, true, [](unsigned c) { return e5m2_to_float(static_cast<unsigned char>(c)); },
       [](float x) { return unsigned{float_to_e5m2(x)}; }},
  };
  for (const Format& f : formats)
    if (f.name == name) return f;
  throw std::invalid_argument(name);
}

class EveryCode : public testing::TestWithParam<const char*> {
 protected:
  const Format& f = format(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Formats, EveryCode, testing::Values("f16", "bf16", "e4m3", "e5m2"),
                         [](const auto& instance) { return std::string(instance.param); });

TEST_P(EveryCode, Widens) {
  for (unsigned code = 0; code < 2 * f.sign_bit(); ++code) {
    const float x = f.widen(code);
    if (f.is_nan(code)) {
      ASSERT_TRUE(std::isnan(x)) << code;
      continue;
    }
    ASSERT_EQ(static_cast<double>(x),
              f.is_infinite(code) ? (code & f.sign_bit() ? -infinity : infinity) : f.value(code))
        << code;
    ASSERT_EQ(std::signbit(x), (code & f.sign_bit()) != 0) << code;
  }
}

TEST_P(EveryCode, NarrowsBackToItself) {
  for (unsigned code = 0; code < 2 * f.sign_bit(); ++code) {
    const unsigned back = f.narrow(f.widen(code));
    if (f.is_nan(code)) {
      ASSERT_TRUE(f.is_nan(back)) << code;
    } else if (f.is_infinite(code) && f.saturates) {
      ASSERT_EQ(back, f.largest() | (code & f.sign_bit()));
    } else {
      ASSERT_EQ(back, code);
    }
  }
}

// Between two neighbouring codes: the midpoint rounds to the even code, and the floats beside the midpoint round to the
// nearer code.
TEST_P(EveryCode, RoundsToNearestEven) {
  for (unsigned code = 0; code <= f.largest(); ++code) {
    const double low = f.value(code), high = code == f.largest() ? f.beyond() : f.value(code + 1);
    const auto middle = static_cast<float>((low + high) / 2);
    ASSERT_EQ(static_cast<double>(middle), (low + high) / 2) << "midpoints are floats";
    const unsigned up = code < f.largest() ? code + 1 : f.saturates ? f.largest() : code + 1;  // code + 1: infinity
    for (const unsigned sign : {0u, f.sign_bit()}) {
      const float s = sign ? -1.0f : 1.0f;
      ASSERT_EQ(f.narrow(s * middle), sign | (code % 2 ? up : code)) << code;
      ASSERT_EQ(f.narrow(s * std::nextafter(middle, 0.0f)), sign | code) << code;
      ASSERT_EQ(f.narrow(s * std::nextafter(middle, infinity)), sign | up) << code;
    }
  }
}

TEST_P(EveryCode, OverflowsAsDocumented) {
  const unsigned over = f.saturates ? f.largest() : f.largest() + 1;
  EXPECT_EQ(f.is_infinite(over), !f.saturates);
  std::vector<float> large{infinity, std::numeric_limits<float>::max()};
  if (f.beyond() < 1e30)
    large.insert(large.end(), {static_cast<float>(f.beyond()), static_cast<float>(2 * f.beyond()), 1e30f});
  for (const float x : large) {
    EXPECT_EQ(f.narrow(x), over) << x;
    EXPECT_EQ(f.narrow(-x), over | f.sign_bit()) << x;
  }
}

TEST_P(EveryCode, UnderflowsToSignedZero) {
  EXPECT_EQ(f.narrow(0.0f), 0u);
  EXPECT_EQ(f.narrow(-0.0f), f.sign_bit());
  EXPECT_EQ(f.narrow(std::numeric_limits<float>::denorm_min()), 0u);
  EXPECT_EQ(f.narrow(-std::numeric_limits<float>::denorm_min()), f.sign_bit());
}

// Tests also NaNs whose payload is only in the bits that are cut off.
TEST_P(EveryCode, KeepsNaN) {
  for (const unsigned payload : {1u, 0x1fffu, 0x200000u, 0x400000u, 0x7fffffu})
    for (const unsigned sign : {0u, 0x80000000u}) {
      const unsigned bits = 0x7f800000u | payload | sign;
      float x = 0;
      std::memcpy(&x, &bits, sizeof x);
      EXPECT_TRUE(f.is_nan(f.narrow(x))) << payload;
    }
}

// For floats of all magnitudes: no other code is nearer than the chosen one.
TEST_P(EveryCode, NarrowsToTheNearestOfAllFloats) {
  for (unsigned bits = 0; bits < 0x7f800000u; bits += 8009) {
    float x = 0;
    std::memcpy(&x, &bits, sizeof x);
    const unsigned code = f.narrow(x);
    ASSERT_EQ(f.narrow(-x), code | f.sign_bit());
    if (f.is_infinite(code)) {
      ASSERT_GE(static_cast<double>(x), (f.value(f.largest()) + f.beyond()) / 2);
      continue;
    }
    const double error = std::abs(f.value(code) - x);
    ASSERT_TRUE(code == 0 || error <= std::abs(f.value(code - 1) - x)) << x;
    ASSERT_TRUE(code == f.largest() || error <= std::abs(f.value(code + 1) - x)) << x;
  }
}

TEST(Formats, LimitsAreThePublishedOnes) {
  EXPECT_EQ(f16_to_float(0x7bff), 65504.0f);
  EXPECT_EQ(e4m3_to_float(0x7e), 448.0f);
  EXPECT_EQ(e4m3_to_float(0x01), 0x1p-9f);
  EXPECT_TRUE(std::isnan(e4m3_to_float(0x7f)));
  EXPECT_TRUE(std::isnan(e4m3_to_float(0xff)));
  EXPECT_EQ(e5m2_to_float(0x7b), 57344.0f);
  EXPECT_EQ(e5m2_to_float(0x7c), infinity);
  EXPECT_TRUE(std::isnan(e5m2_to_float(0x7d)));
  for (const float x : {448.0f, 464.0f, 465.0f, 1000.0f, infinity}) {
    EXPECT_EQ(float_to_e4m3(x), 0x7e) << x;
    EXPECT_EQ(float_to_e4m3(-x), 0xfe) << x;
  }
}

// sim8 is linear: code c is the number -448 + c * 896 / 255.
TEST(Sim8, WidensAndNarrowsLinearly) {
  for (unsigned code = 0; code < 256; ++code) {
    const double exact = -448.0 + code * 896.0 / 255.0;
    const float x = sim8_to_float(static_cast<unsigned char>(code));
    EXPECT_EQ(x, static_cast<float>(exact)) << code;
    EXPECT_EQ(float_to_sim8(x), code);
    const double step = 896.0 / 255.0;
    EXPECT_EQ(float_to_sim8(static_cast<float>(exact + 0.4999 * step)), code);
    EXPECT_EQ(float_to_sim8(static_cast<float>(exact - 0.4999 * step)), code);
  }
  EXPECT_EQ(float_to_sim8(infinity), 255);
  EXPECT_EQ(float_to_sim8(1e30f), 255);
  EXPECT_EQ(float_to_sim8(-infinity), 0);
  EXPECT_EQ(float_to_sim8(0.0f), 128);  // 127.5 rounds to even
  EXPECT_EQ(float_to_sim8(std::numeric_limits<float>::quiet_NaN()), 128);
}

TEST(Formats, LoadAndStoreUseTheNamedFormat) {
  for (const DType t : {DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e5m2, DType::sim8}) {
    alignas(8) unsigned char memory[32];
    std::memset(memory, 0xa5, sizeof memory);
    const float x = t == DType::sim8 ? sim8_to_float(200) : -1.5f;
    store_float(t, memory, 2, x);
    EXPECT_EQ(load_float(t, memory, 2), x) << name_of(t);
    const auto size = static_cast<size_t>(bytes_of(t));
    std::memset(memory + 2 * size, 0xa5, size);
    for (const unsigned char byte : memory)
      EXPECT_EQ(byte, 0xa5) << name_of(t) << ": only its own bytes may be written";
  }
}

// Compares every storage format of dtype.h with the decoding of check/, which shares no code with dtype.h.
TEST(Formats, EveryCodeIsWhatTheOracleDecodes) {
  for (int number = 0; number < dtype_count; ++number) {
    const auto t = static_cast<DType>(number);
    if (!is_fp8(t) && !is_16bit(t)) continue;
    for (unsigned code = 0; code < 1u << 8 * bytes_of(t); ++code) {
      const auto bits = static_cast<unsigned short>(code);  // little-endian, so an 8-bit format reads the low byte
      const double expected = check::decode_element(t, &bits, 0);
      const float x = load_float(t, &bits, 0);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(x)) << name_of(t) << " code " << code;
        continue;
      }
      ASSERT_EQ(x, static_cast<float>(expected)) << name_of(t) << " code " << code;
      unsigned short stored = 0, encoded = 0;
      store_float(t, &stored, 0, x);
      check::encode_element(t, &encoded, 0, expected);
      ASSERT_EQ(stored, encoded) << name_of(t) << " code " << code;
    }
  }
}

TEST(Formats, NamesSizesAndKinds) {
  const struct {
    DType type;
    const char* name;
    int bytes;
    bool fp8, sixteen, input, output;
  } rows[] = {
      {DType::none, "none", 0, false, false, false, false}, {DType::f32, "f32", 4, false, false, true, true},
      {DType::f16, "f16", 2, false, true, true, true},      {DType::bf16, "bf16", 2, false, true, true, true},
      {DType::e4m3, "e4m3", 1, true, false, true, false},   {DType::e5m2, "e5m2", 1, true, false, true, false},
      {DType::sim8, "sim8", 1, true, false, true, false},   {DType::u8, "u8", 1, false, false, false, false},
      {DType::i32, "i32", 4, false, false, false, false},   {DType::i64, "i64", 8, false, false, false, false},
  };
  for (const auto& row : rows) {
    EXPECT_STREQ(name_of(row.type), row.name);
    EXPECT_EQ(bytes_of(row.type), row.bytes) << row.name;
    EXPECT_EQ(is_fp8(row.type), row.fp8) << row.name;
    EXPECT_EQ(is_16bit(row.type), row.sixteen) << row.name;
    EXPECT_EQ(is_attention_input(row.type), row.input) << row.name;
    EXPECT_EQ(is_attention_output(row.type), row.output) << row.name;
  }
}

}  // namespace
}  // namespace rapt
