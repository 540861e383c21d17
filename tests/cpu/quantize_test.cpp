// Compares rapt_quantize on the CPU with a simple reference. The reference finds codes by a search among the 256
// numbers of a format in float64, and scales by sorting. It follows the text of rapt.h, not the code of the kernels.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <set>

#include "check/rotation.h"
#include "cpu/isa.h"
#include "isa.h"
#include "quantize_call.h"
#include "rapt/rapt.hpp"

namespace rapt::test {
namespace {

constexpr int32_t all_scales[] = {RAPT_SCALE_TENSOR,  RAPT_SCALE_HEAD,     RAPT_SCALE_TOKEN,
                                  RAPT_SCALE_BLOCK64, RAPT_SCALE_BLOCK128, RAPT_SCALE_CHANNEL};
const std::vector<DType> storage_types = {DType::e4m3, DType::e5m2, DType::sim8};

// The number that a code stands for, from the definition of the format.
double number_of(DType type, int code) {
  if (type == DType::sim8) return -448.0 + code * 896.0 / 255.0;
  const int mantissa_bits = type == DType::e4m3 ? 3 : 2, bias = type == DType::e4m3 ? 7 : 15;
  const int exponent = code % 128 >> mantissa_bits, mantissa = code % (1 << mantissa_bits);
  const double sign = code < 128 ? 1 : -1;
  if (type == DType::e4m3 && code % 128 == 127) return nan;
  if (type == DType::e5m2 && exponent == 31) return mantissa != 0 ? nan : sign * infinity;
  const double fraction = mantissa / std::ldexp(1.0, mantissa_bits);
  return sign * (exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias));
}

// The FP8 code nearest to x. For a tie, the even code. For values beyond the range, the code of the largest number.
int nearest_code(DType type, double x) {
  if (std::isnan(x)) return 127;
  static std::map<DType, std::vector<std::pair<double, int>>> tables;
  auto& table = tables[type];
  if (table.empty()) {
    for (int code = 0; code < 256; ++code)
      if (std::isfinite(number_of(type, code)) && code != 128) table.emplace_back(number_of(type, code), code);
    std::sort(table.begin(), table.end());
  }
  const auto above = std::lower_bound(table.begin(), table.end(), std::pair{x, -1});
  if (above == table.end()) return table.back().second;
  if (above == table.begin()) return above->second;
  const auto below = above - 1;
  const double to_above = above->first - x, to_below = x - below->first;
  const int code =
      to_above < to_below || (to_above == to_below && above->second % 2 == 0) ? above->second : below->second;
  return code == 0 && std::signbit(x) ? 128 : code;
}

// sim8 is computed in float, with numbers up to 255 * 896 and three roundings. So near a tie both codes are valid.
bool is_right_code(DType type, double x, int code) {
  if (type != DType::sim8) return code == nearest_code(type, x);
  if (std::isnan(x)) return code == 128;
  const double place = (std::clamp(x, -448.0, 448.0) + 448) * 255 / 896;
  return std::fabs(code - place) <= 0.5 + 255 * 3 * 0x1p-24;
}

int code_at(const HostTensor& output, const std::vector<int64_t>& at) {
  int64_t element = output.offset;
  for (size_t d = 0; d < at.size(); ++d) element += at[d] * output.strides[d];
  return static_cast<int>(output.storage[static_cast<size_t>(element)]);
}

float largest_number(DType type) { return type == DType::e5m2 ? 57344.0f : 448.0f; }

// The scale for values with these finite magnitudes.
float factor_of(std::vector<float> magnitudes, double percentile, DType type) {
  if (magnitudes.empty()) return 1.0f;
  std::sort(magnitudes.begin(), magnitudes.end());
  const double wanted = std::ceil(percentile * static_cast<double>(magnitudes.size()) / 100);
  const float amax = magnitudes[static_cast<size_t>(std::max(wanted, 1.0)) - 1];
  if (amax == 0) return 1.0f;
  return std::max(amax / largest_number(type), 0x1p-126f);
}

// Runs the call and compares with the reference. y: a function that computes the values to quantise; default: the
// input.
using Y = std::function<float(int64_t b, int64_t h, int64_t s, int64_t c)>;
void expect_reference(const QuantizeCall& call, Y y = {}) {
  if (!y)
    y = [&](int64_t b, int64_t h, int64_t s, int64_t c) {
      const double mean = call.mean.present() ? call.mean.at({b, h, c}) : 0.0;
      const auto x = static_cast<float>(call.input.at(call.at(b, h, s, c)));
      return call.mean.present() ? x - static_cast<float>(mean) : x;
    };
  std::map<std::vector<int64_t>, std::vector<float>> groups;
  const auto each = [&](const std::function<void(int64_t b, int64_t h, int64_t s, int64_t c)>& visit) {
    for (int64_t b = 0; b < call.batch(); ++b)
      for (int64_t h = 0; h < call.heads(); ++h)
        for (int64_t s = 0; s < call.rows(b); ++s)
          for (int64_t c = 0; c < call.dim(); ++c) visit(b, h, s, c);
  };
  if (!call.has(RAPT_QUANTIZE_SUPPLIED)) {
    // Compares all scales that the sequences could use. Some of them belong to no element.
    each_index(call.descale.shape, [&](const auto& at) {
      if (!(call.packed() && call.scales == RAPT_SCALE_TOKEN)) groups[at];
    });
    each([&](int64_t b, int64_t h, int64_t s, int64_t c) {
      std::vector<float>& group = groups[call.descale_at(b, h, s, c)];
      if (std::isfinite(y(b, h, s, c))) group.push_back(std::fabs(y(b, h, s, c)));
    });
    for (const auto& [at, magnitudes] : groups)
      ASSERT_EQ(call.descale.at(at), factor_of(magnitudes, call.percentile.value_or(100), call.output.dtype));
  }
  int64_t wrong = 0;
  std::set<std::vector<int64_t>> written;
  each([&](int64_t b, int64_t h, int64_t s, int64_t c) {
    const float inverse = 1.0f / static_cast<float>(call.descale.at(call.descale_at(b, h, s, c)));
    const std::vector<int64_t> at = call.at(b, h, s, c);
    const float scaled = y(b, h, s, c) * inverse;
    if (call.packed()) written.insert(at);
    if (is_right_code(call.output.dtype, scaled, code_at(call.output, at)) || ++wrong > 3) return;
    ADD_FAILURE() << "y = " << y(b, h, s, c) << " at b " << b << " h " << h << " s " << s << " c " << c << ": code "
                  << code_at(call.output, at) << " for " << scaled;
  });
  EXPECT_EQ(wrong, 0);
  if (!call.packed()) return;
  each_index(call.output.shape, [&](const auto& at) {
    EXPECT_TRUE(written.contains(at) || is_poisoned(call.output, at)) << "a row of no sequence was written";
  });
}

HostTensor lengths(const std::vector<int32_t>& values) {
  HostTensor list = make_tensor(DType::i32, {static_cast<int64_t>(values.size())});
  for (size_t i = 0; i < values.size(); ++i) put(list, {static_cast<int64_t>(i)}, values[i]);
  return list;
}

QuantizeCall dense(DType type, const std::vector<int64_t>& shape, int32_t scales,
                   QuantizeFill fill = QuantizeFill::normal) {
  QuantizeCall call;
  call.input = make_tensor(type, shape);
  fill_quantize(call.input, fill);
  call.scales = scales;
  return call;
}

// Four sequences in 150 rows. One sequence is empty. The rows after the last sequence belong to no sequence.
QuantizeCall packed(DType type, int32_t scales, int64_t dim = 24, QuantizeFill fill = QuantizeFill::normal) {
  QuantizeCall call;
  call.input = make_tensor(type, {150, 3, dim});
  fill_quantize(call.input, fill);
  call.scales = scales;
  call.cu_seqlens = lengths({0, 17, 17, 130, 141});
  call.max_seqlen = 200;
  return call;
}

void run_and_compare(QuantizeCall& call, DType output, const std::vector<int64_t>& output_strides = {}) {
  call.poison(output, output_strides);
  quantize_on_cpu(call);
  expect_reference(call);
}

class Quantize : public testing::TestWithParam<CpuIsa> {
  const IsaLimit limit_{GetParam()};
};
// The instruction sets to test: the base instruction set, and AVX2, for which the loops are compiled a second time.
std::vector<CpuIsa> compiled_isas() {
  std::vector<CpuIsa> isas = available_cpu_isas();
  std::erase_if(isas, [](CpuIsa isa) { return isa > CpuIsa::avx2; });
  return isas;
}
INSTANTIATE_TEST_SUITE_P(Isa, Quantize, testing::ValuesIn(compiled_isas()), isa_name);

QuantizeCall supplied(const HostTensor& input, float factor) {
  QuantizeCall call;
  call.input = input;
  call.flags = RAPT_QUANTIZE_SUPPLIED;
  call.descale = make_tensor(DType::f32, {1});
  put(call.descale, {0}, factor);
  return call;
}

// With sanitizers only every eleventh combination runs. No list here has a multiple of eleven entries, so each value
// still occurs.
bool leave_out(int n) { return quick() && n % 11 != 0; }

TEST_P(Quantize, EveryCodeComesBack) {
  for (const DType type : storage_types)
    for (const float factor : {1.0f, 0x1p-100f, 0x1p+90f}) {
      if (type == DType::sim8 && factor != 1.0f) continue;  // numbers of sim8 times a factor are not exact
      HostTensor input = make_tensor(DType::f32, {1, 1, 1, 256});
      for (int code = 0; code < 256; ++code) put(input, {0, 0, 0, code}, number_of(type, code) * factor);
      QuantizeCall call = supplied(input, factor);
      call.poison(type);
      quantize_on_cpu(call);
      for (int code = 0; code < 256; ++code) {
        const double number = number_of(type, code);
        const int expected = std::isnan(number)   ? 127
                             : std::isinf(number) ? code - 1  // code of the largest number with the same sign
                                                  : code;
        EXPECT_EQ(code_at(call.output, {0, 0, 0, code}), expected) << name_of(type) << " " << number;
      }
    }
}

// All numbers of a format, all midpoints between neighbours, and the floats beside these values.
TEST_P(Quantize, RoundsToTheNearestAndTiesToEven) {
  for (const DType type : storage_types) {
    std::vector<float> values;
    for (int code = 0; code < 255; ++code) {
      const double a = number_of(type, code), b = number_of(type, code + 1);
      if (!std::isfinite(a) || !std::isfinite(b)) continue;
      for (const double x : {a, (a + b) / 2, b}) {
        const auto f = static_cast<float>(x);
        for (const float near : {std::nextafter(f, -INFINITY), f, std::nextafter(f, INFINITY)}) values.push_back(near);
      }
    }
    for (const float beyond : {448.0f, 463.9f, 464.0f, 480.0f, 57344.0f, 61440.0f, 65536.0f, 3e38f})
      values.insert(values.end(), {beyond, -beyond});
    for (const float small : {0x1p-149f, 0x1p-126f, 0x1p-30f, 0x1p-17f, 0x1p-18f, 0x1p-10f, 0x1p-11f})
      values.insert(values.end(), {small, -small});
    HostTensor input = make_tensor(DType::f32, {1, 1, 1, static_cast<int64_t>(values.size())});
    for (size_t i = 0; i < values.size(); ++i) put(input, {0, 0, 0, static_cast<int64_t>(i)}, values[i]);
    QuantizeCall call = supplied(input, 1.0f);
    run_and_compare(call, type);
  }
}

TEST_P(Quantize, NanInfinityAndZero) {
  const double values[] = {nan, -nan, infinity, -infinity, 0.0, -0.0};
  HostTensor input = make_tensor(DType::f32, {1, 1, 1, 6});
  for (int i = 0; i < 6; ++i) put(input, {0, 0, 0, i}, values[i]);
  const std::map<DType, std::vector<int>> expected = {{DType::e4m3, {0x7f, 0x7f, 0x7e, 0xfe, 0x00, 0x80}},
                                                      {DType::e5m2, {0x7f, 0x7f, 0x7b, 0xfb, 0x00, 0x80}},
                                                      {DType::sim8, {128, 128, 255, 0, 128, 128}}};
  for (const int32_t scales : all_scales)
    for (const auto& [type, codes] : expected) {
      QuantizeCall call;
      call.input = input, call.scales = scales;
      call.poison(type);
      quantize_on_cpu(call);
      for (int i = 0; i < 6; ++i) {
        EXPECT_EQ(code_at(call.output, {0, 0, 0, i}), codes[static_cast<size_t>(i)])
            << name_of(type) << " " << values[i];
        EXPECT_EQ(call.descale.at(call.descale_at(0, 0, 0, i)), 1.0);
      }
    }
}

TEST_P(Quantize, EveryScaleFormatAndFill) {
  int n = 0;
  for (const int32_t scales : all_scales)
    for (const DType type : float_types)
      for (const DType output : storage_types)
        for (const QuantizeFill fill : all_quantize_fills) {
          if (leave_out(n++)) continue;
          SCOPED_TRACE(testing::Message() << "scales " << scales << ", " << name_of(type) << " to " << name_of(output)
                                          << ", fill " << static_cast<int>(fill));
          QuantizeCall call = dense(type, {2, 2, 70, 20}, scales, fill);
          run_and_compare(call, output);
        }
}

TEST_P(Quantize, LengthsAndDims) {
  int n = 0;
  for (const int32_t scales : all_scales)
    for (const int64_t rows : {1, 63, 64, 65, 128, 129, 300})
      for (const int64_t dim : {1, 7, 64, 80}) {
        if (leave_out(n++)) continue;
        SCOPED_TRACE(testing::Message() << "scales " << scales << ", " << rows << " rows of " << dim);
        QuantizeCall call = dense(DType::bf16, {1, 2, rows, dim}, scales, QuantizeFill::outlier);
        run_and_compare(call, DType::e4m3);
      }
  QuantizeCall wide = dense(DType::f16, {1, 1, 3, 70000}, RAPT_SCALE_TOKEN);
  run_and_compare(wide, DType::e5m2);
}

TEST_P(Quantize, PackedSequences) {
  for (const int32_t scales : all_scales)
    for (const QuantizeFill fill : {QuantizeFill::normal, QuantizeFill::special})
      for (const uint64_t flags : {uint64_t{0}, RAPT_QUANTIZE_SMOOTH}) {
        SCOPED_TRACE(testing::Message() << "scales " << scales << ", flags " << flags);
        QuantizeCall call = packed(DType::f16, scales, 24, fill);
        call.flags = flags;
        run_and_compare(call, DType::e4m3);
      }
}

// Rows and columns of inputs are in any order, repeated or reversed. Outputs are transposed, reversed, or have gaps.
TEST_P(Quantize, Strides) {
  int n = 0;
  const std::vector<int64_t> shape{2, 3, 70, 24};
  const std::vector<std::vector<int64_t>> inputs = {{3 * 70 * 24, 24, 3 * 24, 1},   // order in memory: b, s, h, d
                                                    {3 * 70 * 24, 70 * 24, 1, 70},  // transposed
                                                    {0, 70 * 24, 24, 1},            // expanded
                                                    {5040, 1680, -24, 1},           // rows backwards
                                                    {5040, 1680, 24, -1},           // channels backwards
                                                    {0, 0, 0, 1},                   // one row
                                                    {15120, 5040, 72, 3}};          // gaps
  const std::vector<std::vector<int64_t>> outputs = {
      {}, {3 * 70 * 24, 24, 3 * 24, 1}, {3 * 24 * 70, 24 * 70, 1, 70}, {5040, 1680, -24, 1}, {15120, 5040, 72, 3}};
  for (const auto& from : inputs)
    for (const auto& to : outputs)
      for (const int32_t scales : all_scales) {
        if (leave_out(n++)) continue;
        SCOPED_TRACE(testing::Message() << "scales " << scales << ", input " << testing::PrintToString(from)
                                        << ", output " << testing::PrintToString(to));
        QuantizeCall call;
        call.input = check::make_strided(DType::f16, shape, from);
        fill_quantize(call.input, QuantizeFill::outlier);
        call.scales = scales;
        run_and_compare(call, DType::e4m3, to);
      }
}

TEST_P(Quantize, Percentiles) {
  int n = 0;
  for (const int32_t scales : all_scales)
    for (const double percentile : {100.0, 99.9, 99.0, 50.0, 1e-9})
      for (const QuantizeFill fill : {QuantizeFill::outlier, QuantizeFill::special, QuantizeFill::constant,
                                      QuantizeFill::zero, QuantizeFill::tiny}) {
        if (leave_out(n++)) continue;
        SCOPED_TRACE(testing::Message() << "scales " << scales << ", percentile " << percentile << ", fill "
                                        << static_cast<int>(fill));
        QuantizeCall call = dense(DType::f32, {2, 2, 130, 12}, scales, fill);
        call.percentile = percentile;
        run_and_compare(call, DType::e4m3);
        QuantizeCall rows = packed(DType::bf16, scales, 12, fill);
        rows.percentile = percentile;
        run_and_compare(rows, DType::e5m2);
      }
}

// A percentile of 100 is the maximum, whichever way it is computed. With 1000 values, 99.9% is the 999th value.
TEST(QuantizeRules, RankOfAPercentile) {
  EXPECT_EQ(quantizing::rank_of(100, 1000), 1000u);
  EXPECT_EQ(quantizing::rank_of(99.9, 1000), 999u);
  EXPECT_EQ(quantizing::rank_of(99.91, 1000), 1000u);
  EXPECT_EQ(quantizing::rank_of(50, 3), 2u);
  EXPECT_EQ(quantizing::rank_of(1e-300, 5), 1u);
  EXPECT_EQ(quantizing::rank_of(99.9, uint64_t{1} << 40), 1098412116149u);
}

TEST_P(Quantize, SuppliedFactors) {
  for (const int32_t scales : all_scales)
    for (const bool is_packed : {false, true}) {
      QuantizeCall call =
          is_packed ? packed(DType::f16, scales) : dense(DType::f16, {2, 3, 150, 24}, scales, QuantizeFill::special);
      call.flags = RAPT_QUANTIZE_SUPPLIED;
      call.descale = make_tensor(DType::f32, call.descale_shape());
      uint64_t i = 0;
      each_index(call.descale.shape, [&](const auto& at) { put(call.descale, at, 0.001 + check::uniform(1, 9, i++)); });
      const std::vector<unsigned char> before = bits(call.descale);
      for (const DType output : storage_types) run_and_compare(call, output);
      EXPECT_EQ(bits(call.descale), before);
    }
}

// The mean must be the float nearest to the float64 mean, or a neighbour of this float. The codes are then computed
// from the float difference.
TEST_P(Quantize, Smoothing) {
  for (const int32_t scales : all_scales)
    for (const QuantizeFill fill : all_quantize_fills) {
      SCOPED_TRACE(testing::Message() << "scales " << scales << ", fill " << static_cast<int>(fill));
      QuantizeCall call = dense(DType::f32, {2, 2, 70, 20}, scales, fill);
      call.flags = RAPT_QUANTIZE_SMOOTH;
      run_and_compare(call, DType::e4m3);
      for (int64_t b = 0; b < 2; ++b)
        for (int64_t h = 0; h < 2; ++h)
          for (int64_t c = 0; c < 20; ++c) {
            long double sum = 0;
            int count = 0;
            for (int64_t s = 0; s < 70; ++s) {
              const double x = call.input.at({b, h, s, c});
              if (std::isfinite(x)) sum += x, ++count;
            }
            const auto mean = static_cast<float>(count == 0 ? 0 : sum / count);
            const auto got = static_cast<float>(call.mean.at({b, h, c}));
            EXPECT_TRUE(got == mean || std::nextafter(got, mean) == mean) << got << " " << mean;
          }
    }
}

// Compares with the rotation computed as a sum of n terms in float64. Scales must agree within 1e-5, elements within
// half a step.
TEST_P(Quantize, Hadamard) {
  int n = 0;
  for (const int64_t dim : {1, 2, 4, 12, 24, 64, 80, 128, 256, 512}) {
    SCOPED_TRACE(testing::Message() << "dim " << dim);
    for (const int32_t scales : all_scales) {
      if (leave_out(n++)) continue;
      QuantizeCall call = dense(DType::f16, {1, 2, 66, dim}, scales, QuantizeFill::outlier);
      call.flags = RAPT_QUANTIZE_HADAMARD;
      call.poison(DType::e4m3);
      quantize_on_cpu(call);
      std::map<std::vector<int64_t>, double> amax;
      std::vector<double> all;
      for (int64_t h = 0; h < 2; ++h)
        for (int64_t s = 0; s < 66; ++s) {
          std::vector<double> row;
          for (int64_t c = 0; c < dim; ++c) row.push_back(call.input.at({0, h, s, c}));
          check::rotate(row.data(), dim);
          for (int64_t c = 0; c < dim; ++c) {
            double& largest = amax[call.descale_at(0, h, s, c)];
            largest = std::max(largest, std::fabs(row[static_cast<size_t>(c)]));
          }
          all.insert(all.end(), row.begin(), row.end());
        }
      for (const auto& [at, largest] : amax) EXPECT_NEAR(call.descale.at(at), largest / 448, 1e-5 * largest / 448);
      size_t i = 0;
      for (int64_t h = 0; h < 2; ++h)
        for (int64_t s = 0; s < 66; ++s)
          for (int64_t c = 0; c < dim; ++c, ++i) {
            const double descale = call.descale.at(call.descale_at(0, h, s, c));
            const double back = number_of(DType::e4m3, code_at(call.output, {0, h, s, c})) * descale;
            const double step = std::max(std::fabs(all[i]) * 0x1p-4, descale * 0x1p-10);
            ASSERT_NEAR(back, all[i], 1.0001 * step + 1e-5 * std::fabs(all[i]));
          }
    }
  }
}

// Products of rotated rows are equal to products of the original rows.
TEST_P(Quantize, RotationKeepsProducts) {
  QuantizeCall call = dense(DType::f32, {1, 1, 2, 96}, RAPT_SCALE_TOKEN);
  double before = 0, after = 0, bound = 0;
  for (int64_t c = 0; c < 96; ++c) before += call.input.at({0, 0, 0, c}) * call.input.at({0, 0, 1, c});
  call.flags = RAPT_QUANTIZE_HADAMARD;
  call.poison(DType::e4m3);
  quantize_on_cpu(call);
  for (int64_t c = 0; c < 96; ++c) {
    const double a = number_of(DType::e4m3, code_at(call.output, {0, 0, 0, c})) * call.descale.at({0, 0, 0});
    const double b = number_of(DType::e4m3, code_at(call.output, {0, 0, 1, c})) * call.descale.at({0, 0, 1});
    after += a * b;
    bound += (1.0 / 8) * std::fabs(a * b) + 0.001;
  }
  EXPECT_NEAR(after, before, bound);
}

// Dequantisation gives every element back within half a step of the format at the element's size.
TEST_P(Quantize, ErrorIsHalfAStep) {
  for (const int32_t scales : all_scales)
    for (const DType output : storage_types) {
      QuantizeCall call = dense(DType::f32, {2, 2, 130, 64}, scales, QuantizeFill::outlier);
      call.poison(output);
      quantize_on_cpu(call);
      each_index(call.input.shape, [&](const std::vector<int64_t>& at) {
        const double x = call.input.at(at), descale = call.descale.at(call.descale_at(at[0], at[1], at[2], at[3]));
        const double back = number_of(output, code_at(call.output, at)) * descale;
        const double relative = output == DType::e4m3 ? 0x1p-4 : 0x1p-3,
                     smallest = output == DType::e4m3 ? 0x1p-10 : 0x1p-17;
        const double step =
            output == DType::sim8 ? descale * 448 / 255 : std::max(std::fabs(x) * relative, descale * smallest);
        ASSERT_LE(std::fabs(back - x), step * (1 + (output == DType::sim8 ? 1e-4 : 3e-6))) << x;  // float roundings
      });
    }
}

// Rotation, smoothing, percentile and packing in one call are compared with separate steps. A call with supplied scales
// and the same flags gives exactly the values that are quantised, and the reference starts from these values.
TEST_P(Quantize, EverythingTogether) {
  for (const int32_t scales : all_scales) {
    SCOPED_TRACE(testing::Message() << "scales " << scales);
    QuantizeCall call = packed(DType::f16, scales, 48, QuantizeFill::offset);
    call.flags = RAPT_QUANTIZE_HADAMARD | RAPT_QUANTIZE_SMOOTH;
    call.percentile = 99;
    call.poison(DType::e4m3);
    quantize_on_cpu(call);
    // The rotated input, computed in float by the formula of rapt.h. Groups have 16 channels, so the factor is 1/4.
    std::vector<float> rotated;
    for (int64_t r = 0; r < 150; ++r)
      for (int64_t h = 0; h < 3; ++h) {
        std::vector<float> row;
        for (int64_t c = 0; c < 48; ++c)
          row.push_back(static_cast<float>(call.input.at({r, h, c}) * check::rotation_sign(c)));
        for (int64_t apart = 1; apart < 16; apart *= 2) {
          std::vector<float> next = row;
          for (int64_t c = 0; c < 48; ++c) {
            const auto low = static_cast<size_t>(c & ~apart), high = static_cast<size_t>(c | apart);
            next[static_cast<size_t>(c)] = (c & apart) == 0 ? row[low] + row[high] : row[low] - row[high];
          }
          row = next;
        }
        for (const float x : row) rotated.push_back(x * 0.25f);
      }
    expect_reference(call, [&](int64_t b, int64_t h, int64_t s, int64_t c) {
      const int64_t row = call.first_row(b) + s;
      return rotated[static_cast<size_t>((row * 3 + h) * 48 + c)] - static_cast<float>(call.mean.at({b, h, c}));
    });
  }
}

// The bits are the same for any number of threads and every instruction set.
TEST(QuantizeRepeats, OnThreadsAndInstructionSets) {
  int n = 0;
  for (const int32_t scales : all_scales)
    for (const uint64_t flags : {uint64_t{0}, RAPT_QUANTIZE_HADAMARD | RAPT_QUANTIZE_SMOOTH})
      for (const DType type : float_types)
        for (const double percentile : {100.0, 97.0}) {
          if (leave_out(n++)) continue;
          QuantizeCall first = dense(type, {2, 3, 200, 64}, scales, QuantizeFill::special);
          first.flags = flags, first.percentile = percentile;
          first.poison(DType::e4m3);
          quantize_on_cpu(first);
          for (const CpuIsa isa : compiled_isas())
            for (const int threads : {1, 2, 5}) {
              const IsaLimit limit(isa);
              const Context context({.num_threads = threads});
              QuantizeCall again = first;
              again.poison(DType::e4m3);
              quantize_on_cpu(again, context.get());
              expect_same_outputs(again, first);
            }
        }
}

TEST(QuantizeEmpty, SizesOfZero) {
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{0, 2, 8, 16}, {2, 0, 8, 16}, {2, 2, 0, 16}, {2, 2, 8, 0}})
    for (const int32_t scales : all_scales) {
      QuantizeCall call = dense(DType::f16, shape, scales);
      call.flags = RAPT_QUANTIZE_SMOOTH | RAPT_QUANTIZE_HADAMARD;
      run_and_compare(call, DType::e4m3);
      each_index(call.descale.shape, [&](const auto& at) { EXPECT_EQ(call.descale.at(at), 1.0); });
      each_index(call.mean.shape, [&](const auto& at) { EXPECT_EQ(call.mean.at(at), 0.0); });
    }
  QuantizeCall none;
  none.input = make_tensor(DType::f16, {5, 2, 8});
  none.cu_seqlens = lengths({0});
  none.max_seqlen = 4;
  run_and_compare(none, DType::e4m3);
}

// The caller's floating-point modes must not change the result, so subnormal inputs count.
TEST(QuantizeArithmetic, IsIeeeWhateverTheCallersIs) {
  QuantizeCall call = dense(DType::f32, {1, 1, 4, 16}, RAPT_SCALE_TENSOR, QuantizeFill::tiny);
  call.poison(DType::e4m3);
#if defined(__x86_64__)
  const unsigned before = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(before | 0x8040);  // treat subnormal inputs and results as 0
  quantize_on_cpu(call);
  __builtin_ia32_ldmxcsr(before);
#else
  quantize_on_cpu(call);
#endif
  expect_reference(call);
}

TEST(QuantizeApi, OptionsOfTheCppForm) {
  std::vector<float> input(2 * 4 * 8);
  for (size_t i = 0; i < input.size(); ++i) input[i] = static_cast<float>(i) - 20;
  std::vector<E4m3> output(input.size());
  std::vector<float> factors(2), means(2 * 8);
  quantize(Tensor(input.data(), {1, 2, 4, 8}), Tensor(output.data(), {1, 2, 4, 8}), Tensor(factors.data(), {1, 2}),
           Scales::head, {.mean = Tensor(means.data(), {1, 2, 8}), .percentile = 100, .smooth = true});
  EXPECT_EQ(means[0], -8.0f);  // the mean of -20, -12, -4, 4
  EXPECT_EQ(factors[0], 12.0f / 448.0f);
  EXPECT_EQ(output[0].bits, 0xfe);
  const int32_t cu[] = {0, 3, 4};
  const std::vector<float> given{0.5f, 0.25f, 1, 1};
  quantize(Tensor(input.data(), {4, 2, 8}), Tensor(output.data(), {4, 2, 8}), Tensor(given.data(), {2, 2}),
           Scales::head, {.cu_seqlens = Tensor(cu, {3}), .max_seqlen = 3, .supplied = true});
  EXPECT_EQ(number_of(DType::e4m3, output[0].bits), -40.0);
}

}  // namespace
}  // namespace rapt::test
