// Tests of check/ itself: number formats, fills, the oracle (compared with closed forms and finite differences),
// comparison, bounds and case files. Only CheckRange and parse_problem call the library. The tested kernels are those
// of check/ itself.
#include "check/check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "check/bounds.h"
#include "check/cases.h"
#include "check/format.h"
#include "check/known_bad.h"
#include "check/plain.h"
#include "check/poison.h"
#include "check/range.h"
#include "check/rotation.h"
#include "check/stages.h"

namespace rapt {
namespace {

using check::Fill;
using check::HostTensor;
using check::Inputs;
using check::make_inputs;
using check::Outputs;
using check::Reference;
using check::RowState;

constexpr double infinity = std::numeric_limits<double>::infinity();
const std::string cases_directory = std::string(RAPT_SOURCE_DIR) + "/check/cases";

void fill_all(HostTensor& tensor, double value) {
  for (int64_t n = 0; n < tensor.size(); ++n) check::encode_element(tensor.dtype, tensor.data(), n, value);
}

// ---- number formats

TEST(CheckFormats, EveryCodeSurvivesARoundTrip) {
  for (const DType dtype : {DType::f16, DType::bf16, DType::e4m3, DType::e5m2, DType::sim8})
    for (unsigned code = 0; code < (bytes_of(dtype) == 1 ? 256u : 65536u); ++code) {
      const auto narrow = static_cast<uint8_t>(code);
      const auto wide = static_cast<uint16_t>(code);
      const void* bits = bytes_of(dtype) == 1 ? static_cast<const void*>(&narrow) : &wide;
      const double value = check::decode_element(dtype, bits, 0);
      if (!std::isfinite(value)) continue;
      ASSERT_EQ(check::round_to(dtype, value), value) << name_of(dtype) << " code " << code;
    }
}

TEST(CheckFormats, KnownValues) {
  const auto decode8 = [](DType dtype, uint8_t code) { return check::decode_element(dtype, &code, 0); };
  EXPECT_EQ(decode8(DType::e4m3, 0x7e), 448.0);
  EXPECT_EQ(decode8(DType::e4m3, 0x01), std::ldexp(1.0, -9));
  EXPECT_TRUE(std::isnan(decode8(DType::e4m3, 0x7f)));
  EXPECT_EQ(decode8(DType::e4m3, 0xb8), -1.0);
  EXPECT_EQ(decode8(DType::e5m2, 0x7b), 57344.0);
  EXPECT_EQ(decode8(DType::e5m2, 0x7c), infinity);
  EXPECT_EQ(decode8(DType::e5m2, 0x01), std::ldexp(1.0, -16));
  EXPECT_EQ(decode8(DType::sim8, 0), -448.0);
  EXPECT_EQ(decode8(DType::sim8, 255), 448.0);
  EXPECT_EQ(check::round_to(DType::f16, 65519.0), 65504.0);
  EXPECT_EQ(check::round_to(DType::f16, 65520.0), infinity);
  EXPECT_EQ(check::round_to(DType::f16, std::ldexp(1.0, -25)), 0.0);  // a tie, which rounds to even
  EXPECT_EQ(check::round_to(DType::bf16, 1 + std::ldexp(1.0, -8)), 1.0);
  EXPECT_EQ(check::round_to(DType::bf16, 1 + std::ldexp(3.0, -8)), 1 + std::ldexp(1.0, -6));
  EXPECT_EQ(check::round_to(DType::e4m3, 1e9), 448.0);
  EXPECT_EQ(check::round_to(DType::e4m3, -infinity), -448.0);
  EXPECT_EQ(check::round_to(DType::e5m2, infinity), 57344.0);
  EXPECT_EQ(check::round_to(DType::e4m3, 17.0), 16.0);  // a tie between 16 and 18
  EXPECT_EQ(check::round_to(DType::e4m3, 19.0), 20.0);
  EXPECT_TRUE(std::isnan(check::round_to(DType::e4m3, std::nan(""))));
}

// ---- fills

TEST(CheckFill, SameSeedSameBitsWhateverTheLayout) {
  const Inputs a = make_inputs(parse_problem("f16 b2 h3 q5 k7 d8"), Fill::normal, 7);
  const Inputs b = make_inputs(parse_problem("f16 b2 h3 q5 k7 d8 layout=bshd"), Fill::normal, 7);
  const Inputs c = make_inputs(parse_problem("f16 b2 h3 q5 k7 d8"), Fill::normal, 8);
  EXPECT_EQ(std::memcmp(a.q.data(), make_inputs(parse_problem("f16 b2 h3 q5 k7 d8"), Fill::normal, 7).q.data(), 480),
            0);
  EXPECT_NE(std::memcmp(a.q.data(), c.q.data(), 480), 0);
  EXPECT_NE(a.k.strides, b.k.strides);
  for (int64_t n = 0; n < 2; ++n)
    for (int64_t h = 0; h < 3; ++h)
      for (int64_t j = 0; j < 7; ++j) ASSERT_EQ(a.k.at({n, h, j, 3}), b.k.at({n, h, j, 3}));
}

// The generator must give these values on every machine and in every version, because results contain only fill and
// seed.
TEST(CheckFill, GeneratorIsFixed) {
  EXPECT_EQ(check::uniform(1, 2, 3), 0x1.a0e68ea1fbc6cp-1);
  EXPECT_EQ(check::normal(1, 2, 3), 0x1.317184p+0);
}

TEST(CheckFill, NormalAndOutlierHaveTheirMoments) {
  const auto moments = [](Fill fill) {
    const Inputs in = make_inputs(parse_problem("f32 b1 h8 q512 d64"), fill, 3);
    const float* x = reinterpret_cast<const float*>(in.q.data());
    double sum = 0, square = 0, fourth = 0;
    for (int64_t n = 0; n < in.q.size(); ++n) {
      const double v = static_cast<double>(x[n]);
      sum += v;
      square += v * v;
      fourth += v * v * v * v;
    }
    const auto count = static_cast<double>(in.q.size());
    return std::array<double, 3>{sum / count, square / count, fourth / count};
  };
  const auto n = moments(Fill::normal), o = moments(Fill::outlier);  // 262144 numbers
  EXPECT_NEAR(n[0], 0, 0.01);
  EXPECT_NEAR(n[1], 1, 0.02);
  EXPECT_NEAR(n[2], 3, 0.1);
  EXPECT_NEAR(o[1], 1.1, 0.05);    // 1 + 0.001 * 100
  EXPECT_NEAR(o[2], 3 + 30.6, 8);  // 3 + 0.001 * (3 * 100^2 + 6 * 100)
}

TEST(CheckFill, ScalesMatchTheQuantisedData) {
  for (const char* scales : {"tensor", "head", "token", "block64", "block128"}) {
    const Problem coded = parse_problem(std::string("e4m3 b2 h2 q20 k70 d16 scales=") + scales);
    const Problem exact = parse_problem("f32 b2 h2 q20 k70 d16");
    const Inputs a = make_inputs(coded, Fill::normal, 5), b = make_inputs(exact, Fill::normal, 5);
    const check::Reading ra(coded, a), rb(exact, b);
    double error = 0, size = 0;
    for (size_t n = 0; n < ra.k.size(); ++n) {
      error += (ra.k[n] - rb.k[n]) * (ra.k[n] - rb.k[n]);
      size += rb.k[n] * rb.k[n];
    }
    EXPECT_GT(error, 0) << scales;
    EXPECT_LT(std::sqrt(error / size), 0.04) << scales;  // errors are at most 2^-4, so rms is about 2^-4 / sqrt(3)
  }
}

TEST(CheckFill, HiddenNanHidesEverywhereAndNowhereElse) {
  const Problem p = parse_problem("f16 b2 h4:2 q6 k20 d8 causal_top_left seqused=20,3");
  const Inputs in = make_inputs(p, Fill::hidden_nan, 1);
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t j = 0; j < 20; ++j)
      for (int64_t d = 0; d < 8; ++d)
        ASSERT_EQ(std::isfinite(in.v.at({b, 1, j, d})), j < (b == 0 ? 6 : 3)) << b << " " << j;
  const Reference r = check::forward(p, in);
  for (const double x : r.out) ASSERT_TRUE(std::isfinite(x));
}

TEST(CheckFill, RotationIsTheFormula) {
  const std::array<std::array<int64_t, 2>, 9> groups = {
      {{64, 64}, {80, 16}, {96, 32}, {128, 128}, {256, 256}, {512, 256}, {72, 8}, {5, 1}, {1, 1}}};
  for (const auto& [dim, group] : groups) EXPECT_EQ(check::rotation_group(dim), group) << dim;
  std::string signs;
  for (int64_t c = 0; c < 16; ++c) signs += check::rotation_sign(c) > 0 ? '+' : '-';
  EXPECT_EQ(signs, "+-++-++--+++-+--");
  std::vector<double> row = {3, 0, 0, 0, 0, 5};  // groups of 2
  check::rotate(row.data(), 6);
  const double half = std::sqrt(0.5), third = 3 * check::rotation_sign(0), last = 5 * check::rotation_sign(5);
  EXPECT_NEAR(row[0], third * half, 1e-15);
  EXPECT_NEAR(row[1], third * half, 1e-15);
  EXPECT_EQ(row[2], 0);
  EXPECT_NEAR(row[4], last * half, 1e-15);
  EXPECT_NEAR(row[5], -last * half, 1e-15);
}

TEST(CheckFill, RotationKeepsProducts) {
  std::vector<double> a(96), b(96);
  for (size_t d = 0; d < 96; ++d) a[d] = check::normal(1, 1, d), b[d] = check::normal(1, 2, d);
  const auto dot = [&] { return std::inner_product(a.begin(), a.end(), b.begin(), 0.0); };
  const double before = dot();
  check::rotate(a.data(), 96);
  check::rotate(b.data(), 96);
  EXPECT_NEAR(dot(), before, 1e-12);
}

// Stored keys times their scale plus the mean are equal to the rotated originals, within half a step of the format.
TEST(CheckFill, SmoothedKeysAreTheOriginalOnes) {
  const Problem plain = parse_problem("f32 h2 d32 varlen=3:50,0:0,5:7");
  const Problem smooth = parse_problem("e4m3 out=f32 h2 d32 varlen=3:50,0:0,5:7 scales=token smooth_k hadamard");
  const Inputs original = make_inputs(plain, Fill::outlier, 4), in = make_inputs(smooth, Fill::outlier, 4);
  EXPECT_EQ(in.k_mean.shape, (std::vector<int64_t>{3, 2, 32}));
  const check::Reading want(plain, original), got(smooth, in);
  for (const int64_t b : {0, 2})
    for (int64_t h = 0; h < 2; ++h) {
      std::vector<double> sum(32, 0.0);
      for (int64_t j = 0; j < got.sequences[b].seqlen_k; ++j) {
        std::vector<double> key(want.k_row(b, h, j), want.k_row(b, h, j) + 32);
        check::rotate(key.data(), 32);
        const double step = in.k_descale.at({h, got.sequences[b].first_k + j}) * 16;
        for (int64_t d = 0; d < 32; ++d) {
          EXPECT_NEAR(got.k_row(b, h, j)[d], key[d], step + 1e-6);
          sum[d] += key[d];
        }
      }
      for (int64_t d = 0; d < 32; ++d)
        EXPECT_NEAR(in.k_mean.at({b, h, d}), sum[d] / static_cast<double>(got.sequences[b].seqlen_k), 1e-6);
    }
  for (int64_t d = 0; d < 32; ++d) EXPECT_EQ(in.k_mean.at({1, 0, d}), 0);
}

TEST(CheckFill, UnknownNameIsNamed) {
  try {
    check::parse_fill("norml");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("norml"), std::string::npos);
  }
}

// ---- the oracle against closed forms

// If q = 0, every visible key has the same weight. So out is the mean of the visible v, and lse is the logarithm of
// their number.
struct UniformCase {
  const char* line;
  // The first and the last visible key of query i, from the definitions of the masks.
  int64_t (*first)(int64_t i), (*last)(int64_t i);
};

class OracleUniform : public testing::TestWithParam<UniformCase> {};

TEST_P(OracleUniform, MeanOfVisibleKeys) {
  const Problem p = parse_problem(GetParam().line);
  Inputs in = make_inputs(p, Fill::normal, 1);
  fill_all(in.q, 0);
  for (int64_t h = 0; h < p.heads_k; ++h)
    for (int64_t j = 0; j < p.seqlen_k; ++j) in.v.set({0, h, j, 0}, static_cast<double>(j));
  const Reference r = check::forward(p, in);
  for (int64_t h = 0; h < p.heads_q; ++h)
    for (int64_t i = 0; i < p.seqlen_q; ++i) {
      const int64_t first = std::max<int64_t>(0, GetParam().first(i)),
                    last = std::min(p.seqlen_k - 1, GetParam().last(i));
      const int64_t row = h * p.seqlen_q + i;
      const double count = static_cast<double>(std::max<int64_t>(0, last - first + 1));
      if (count == 0)
        EXPECT_EQ(r.lse[row], -infinity) << i;
      else
        EXPECT_NEAR(r.lse[row], std::log(count), 1e-12) << i;
      EXPECT_NEAR(r.out[row * p.head_dim_v], count > 0 ? static_cast<double>(first + last) / 2 : 0, 1e-12) << i;
    }
}

INSTANTIATE_TEST_SUITE_P(
    Masks, OracleUniform,
    testing::Values(
        UniformCase{"f32 b1 h2 q5 k9 d4", [](int64_t) -> int64_t { return 0; }, [](int64_t) -> int64_t { return 8; }},
        UniformCase{"f32 b1 h2 q5 k9 d4 causal", [](int64_t) -> int64_t { return 0; }, [](int64_t i) { return i + 4; }},
        UniformCase{"f32 b1 h2 q9 k5 d4 causal", [](int64_t) -> int64_t { return 0; }, [](int64_t i) { return i - 4; }},
        UniformCase{"f32 b1 h2 q5 k9 d4 causal_top_left", [](int64_t) -> int64_t { return 0; },
                    [](int64_t i) { return i; }},
        UniformCase{"f32 b1 h2 q5 k9 d4 window=2,1", [](int64_t i) { return i + 4 - 2; },
                    [](int64_t i) { return i + 4 + 1; }},
        UniformCase{"f32 b1 h2 q5 k9 d4 window=0,-1", [](int64_t i) { return i + 4; },
                    [](int64_t) -> int64_t { return 8; }},
        UniformCase{"f32 b1 h2 q5 k9 d4 causal_top_left window=1,3", [](int64_t i) { return i - 1; },
                    [](int64_t i) { return i; }},
        UniformCase{"f32 b1 h2 q5 k9 d4 causal q_start=7 k_start=5", [](int64_t) -> int64_t { return 0; },
                    [](int64_t i) { return i + 2; }},
        UniformCase{"f32 b1 h2 q5 k9 d4 causal k_start=3", [](int64_t) -> int64_t { return 0; },
                    [](int64_t i) { return i - 3; }},
        UniformCase{"f32 b1 h2 q5 k9 d4 causal seqused=6", [](int64_t) -> int64_t { return 0; },
                    [](int64_t i) { return std::min<int64_t>(5, i + 1); }}));

TEST(Oracle, ScoresByHand) {
  // One query, two keys and one dimension. q = 2, k = (1, 3), scale = 0.5, softcap = 2, bias = (0, -1), slope = 1/4,
  // off = 1.
  const Problem p = parse_problem("f32 b1 h1 q1 k2 d1 scale=0.5 softcap=2 bias=f32[1,1,1,k] alibi sinks");
  Inputs in = make_inputs(p, Fill::normal, 1);
  in.q.set({0, 0, 0, 0}, 2);
  in.k.set({0, 0, 0, 0}, 1);
  in.k.set({0, 0, 1, 0}, 3);
  in.v.set({0, 0, 0, 0}, 10);
  in.v.set({0, 0, 1, 0}, 20);
  in.bias.set({0, 0, 0, 0}, 0);
  in.bias.set({0, 0, 0, 1}, -1);
  in.alibi_slopes.set({0}, 0.25);
  in.sinks.set({0}, 0.5);
  const double x0 = 2 * std::tanh(0.5) - 0.25, x1 = 2 * std::tanh(1.5) - 1;
  const double sum = std::exp(x0) + std::exp(x1) + std::exp(0.5);
  const Reference r = check::forward(p, in);
  EXPECT_NEAR(r.lse[0], std::log(sum), 1e-14);
  EXPECT_NEAR(r.out[0], (10 * std::exp(x0) + 20 * std::exp(x1)) / sum, 1e-13);
}

TEST(Oracle, EmptyRowsAndTheirSinks) {
  Problem p = parse_problem("f32 b1 h2 q3 k4 d4 mask=[1,1,q,k] sinks");
  Inputs in = make_inputs(p, Fill::normal, 1);
  for (int64_t j = 0; j < 4; ++j) in.mask.set({0, 0, 1, j}, 0);
  in.sinks.set({1}, 0.75);
  Reference r = check::forward(p, in);
  EXPECT_EQ(r.lse[3 + 1], 0.75);
  for (int64_t d = 0; d < 4; ++d) EXPECT_EQ(r.out[(3 + 1) * 4 + d], 0);
  r = check::forward(p, in, {.sinks = false});
  EXPECT_EQ(r.lse[3 + 1], -infinity);
}

TEST(Oracle, MinusInfinityHidesAndTheLowestNumberDoesNot) {
  const Problem p = parse_problem("f32 b1 h1 q2 k3 d2 bias=f32[1,1,q,k]");
  Inputs in = make_inputs(p, Fill::normal, 1);
  const double lowest = -static_cast<double>(std::numeric_limits<float>::max());
  for (int64_t j = 0; j < 3; ++j) in.bias.set({0, 0, 0, j}, -infinity);
  for (int64_t j = 0; j < 3; ++j) in.bias.set({0, 0, 1, j}, j == 1 ? lowest : -infinity);
  in.v.set({0, 0, 0, 0}, std::nan(""));
  const Reference r = check::forward(p, in);
  EXPECT_EQ(r.lse[0], -infinity);
  EXPECT_EQ(r.out[0], 0);
  EXPECT_EQ(r.out[2], in.v.at({0, 0, 1, 0}));
}

TEST(Oracle, NanReachesOnlyTheRowsThatSeeIt) {
  const Problem p = parse_problem("f32 b1 h1 q4 k4 d2 causal");
  Inputs in = make_inputs(p, Fill::normal, 1);
  in.k.set({0, 0, 2, 0}, std::nan(""));
  const Reference r = check::forward(p, in);
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(std::isnan(r.out[i * 2]), i >= 2) << i;
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(std::isnan(r.lse[i]), i >= 2) << i;
}

TEST(Oracle, GroupedHeadsReadTheirOwnKeys) {
  const Problem grouped = parse_problem("f32 b1 h6:2 q3 k5 d4"), one = parse_problem("f32 b1 h1 q3 k5 d4");
  const Inputs in = make_inputs(grouped, Fill::normal, 1);
  const Reference whole = check::forward(grouped, in);
  for (int64_t h = 0; h < 6; ++h) {
    Inputs single = in;
    for (auto [tensor, head] : {std::pair{&single.q, h}, std::pair{&single.k, h / 3}, std::pair{&single.v, h / 3}}) {
      tensor->offset += head * tensor->strides[1];
      tensor->shape[1] = 1;
    }
    const Reference part = check::forward(one, single);
    for (size_t n = 0; n < part.out.size(); ++n)
      ASSERT_EQ(part.out[n], whole.out[static_cast<size_t>(h) * part.out.size() + n]);
  }
}

TEST(Oracle, SlopesMayDifferByBatch) {
  Problem p = parse_problem("f32 b2 h2 q3 k5 d4 alibi");
  p.alibi_per_batch = true;
  const Inputs in = make_inputs(p, Fill::normal, 1);
  ASSERT_EQ(in.alibi_slopes.shape, (std::vector<int64_t>{2, 2}));
  const check::Reading r(p, in);
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t h = 0; h < 2; ++h) EXPECT_EQ(r.alibi(b, h, 0, 4), -2 * in.alibi_slopes.at({b, h}));
  EXPECT_NE(in.alibi_slopes.at({0, 1}), in.alibi_slopes.at({1, 1}));
}

TEST(Oracle, PackedSequencesEqualDenseOnes) {
  const Problem packed = parse_problem("f32 h2 d4 varlen=3:5,0:2,4:1 causal");
  const Inputs in = make_inputs(packed, Fill::normal, 1);
  const Reference whole = check::forward(packed, in);
  const check::Reading reading(packed, in);
  for (int64_t b : {0, 2}) {
    const check::Sequence& s = reading.sequences[b];
    Problem dense = parse_problem("f32 b1 h2 q1 k1 d4 causal");
    dense.seqlen_q = s.seqlen_q;
    dense.seqlen_k = s.seqlen_k;
    Inputs part;
    for (auto [from, to, first, length] :
         {std::tuple{&in.q, &part.q, s.first_q, s.seqlen_q}, std::tuple{&in.k, &part.k, s.first_k, s.seqlen_k},
          std::tuple{&in.v, &part.v, s.first_k, s.seqlen_k}}) {
      *to = *from;
      to->offset += first * from->strides[0];
      to->shape = {1, 2, length, 4};
      to->strides = {0, from->strides[1], from->strides[0], from->strides[2]};
    }
    const Reference expected = check::forward(dense, part);
    for (int64_t h = 0; h < 2; ++h)
      for (int64_t i = 0; i < s.seqlen_q; ++i)
        ASSERT_EQ(whole.lse[reading.row_q(b, h, i)], expected.lse[h * s.seqlen_q + i]) << b << " " << i;
  }
}

TEST(Oracle, LengthsAboveTheMaximumCountAsTheMaximum) {
  Problem p = parse_problem("f32 h1 d4 varlen=6:9,2:3");
  const Inputs in = make_inputs(p, Fill::normal, 1);
  p.seqlen_q = 4;
  p.seqlen_k = 5;
  const Reference r = check::forward(p, in);
  EXPECT_EQ(r.state[3], RowState::computed);
  EXPECT_EQ(r.state[4], RowState::untouched);
  EXPECT_EQ(r.state[6], RowState::computed);
  Problem shorter = p;
  Inputs cut = in;
  shorter.seqused = true;
  cut.seqused_k = check::make_tensor(DType::i32, {2});
  cut.seqused_k.set({0}, 5);
  cut.seqused_k.set({1}, 3);
  EXPECT_EQ(check::forward(shorter, cut).out, r.out);
}

TEST(Oracle, EveryScaleKindMultipliesItsOwnElements) {
  for (const bool packed : {false, true})
    for (const char* kind : {"tensor", "head", "token", "block64", "block128", "channel"}) {
      const std::string shape = packed ? "f32 h2 d3 varlen=2:70,1:130" : "f32 b2 h2 q2 k130 d3";
      const Problem plain_problem = parse_problem(shape);
      Problem p = parse_problem("e4m3 out=f32" + shape.substr(3) + " v_scales=" + kind);
      const Inputs in = make_inputs(p, Fill::normal, 1);
      const check::Reading r(p, in);
      Inputs unscaled = in;
      p.v_scales = ScaleKind::none;
      const check::Reading raw(p, unscaled);
      for (int64_t b = 0; b < 2; ++b)
        for (int64_t h = 0; h < 2; ++h)
          for (int64_t j = 0; j < r.sequences[b].seqlen_k; ++j)
            for (int64_t d = 0; d < 3; ++d) {
              const std::string k = kind;
              double scale = 0;
              if (k == "tensor") scale = in.v_descale.at({0});
              if (k == "head") scale = in.v_descale.at({b, h});
              if (k == "token") scale = packed ? in.v_descale.at({h, (b ? 70 : 0) + j}) : in.v_descale.at({b, h, j});
              if (k == "block64") scale = in.v_descale.at({b, h, j / 64});
              if (k == "block128") scale = in.v_descale.at({b, h, j / 128});
              if (k == "channel") scale = in.v_descale.at({b, h, d});
              const int64_t at = r.row_k(b, h, j) * 3 + d;
              ASSERT_EQ(r.v[at], raw.v[at] * scale) << kind << " " << packed << " " << j;
            }
    }
}

// A mean shared by all keys does not change softmax, but it changes lse, and with a soft cap also the weights.
TEST(Oracle, MeanBelongsToEveryKey) {
  for (const char* words : {"scale=0.5", "softcap=3", "sinks"}) {
    const std::string line = std::string("q=f32 k=e4m3 v=f32 out=f32 b2 h4:2 q5 k9 d8 k_scales=head smooth_k ") + words;
    const Problem p = parse_problem(line);
    Problem whole = p;
    whole.k = DType::f32;
    whole.k_scales = ScaleKind::none;
    whole.smooth_k = false;
    const Inputs in = make_inputs(p, Fill::normal, 2);
    Inputs same = in;
    same.k = check::make_tensor(DType::f32, in.k.shape);
    same.k_descale = same.k_mean = {};
    for (int64_t b = 0; b < 2; ++b)
      for (int64_t h = 0; h < 2; ++h)
        for (int64_t j = 0; j < 9; ++j)
          for (int64_t d = 0; d < 8; ++d)
            same.k.set({b, h, j, d}, in.k.at({b, h, j, d}) * in.k_descale.at({b, h}) + in.k_mean.at({b, h, d}));
    const Reference a = check::forward(p, in), b = check::forward(whole, same);
    for (size_t n = 0; n < a.lse.size(); ++n) EXPECT_NEAR(a.lse[n], b.lse[n], 1e-6) << words;
    for (size_t n = 0; n < a.out.size(); ++n) EXPECT_NEAR(a.out[n], b.out[n], 1e-6) << words;
  }
}

TEST(Oracle, MergeOfAnySplitIsTheWhole) {
  for (const char* line : {"f32 b1 h4:2 q7 k31 d8 causal sinks", "f32 h2 d8 varlen=5:17,3:0,2:40 window=6,2",
                           "f32 b2 h2 q4 k31 d8 seqused=31,0"}) {
    const Problem p = parse_problem(line);
    const Inputs in = make_inputs(p, Fill::normal, 1);
    const Reference whole = check::forward(p, in);
    for (const std::vector<int64_t>& cuts : {std::vector<int64_t>{0, 1, -1}, {0, 13, 14, 30, -1}, {0, 0, 31, -1}}) {
      std::vector<Reference> parts;
      for (size_t n = 0; n + 1 < cuts.size(); ++n)
        parts.push_back(check::forward(p, in, {.key_begin = cuts[n], .key_end = cuts[n + 1], .sinks = false}));
      const Reference merged = check::merge_states(p, parts, in.sinks);
      for (int64_t row = 0; row < whole.rows; ++row) {
        if (std::isinf(whole.lse[row]))
          ASSERT_EQ(merged.lse[row], whole.lse[row]) << line << " row " << row;
        else
          ASSERT_NEAR(merged.lse[row], whole.lse[row], 1e-12) << line << " row " << row;
        for (int64_t d = 0; d < 8; ++d) ASSERT_NEAR(merged.out[row * 8 + d], whole.out[row * 8 + d], 1e-12) << line;
      }
    }
  }
}

TEST(Oracle, MergeWithAnEmptyPartReturnsTheOther) {
  const Problem p = parse_problem("f32 b1 h1 q2 k6 d4");
  const Inputs in = make_inputs(p, Fill::normal, 1);
  const Reference whole = check::forward(p, in), nothing = check::forward(p, in, {.key_begin = 6});
  EXPECT_EQ(check::merge_states(p, {whole, nothing}).out, whole.out);
  EXPECT_EQ(check::merge_states(p, {nothing, whole}).lse, whole.lse);
  EXPECT_EQ(check::merge_states(p, {nothing, nothing}).lse[0], -infinity);
}

// The derivative of sum(out * d_out), computed with central differences. Inputs are f32 and the steps are 2^-9 (exact),
// so errors are about 1e-5.
TEST(Oracle, GradientsAgreeWithFiniteDifferences) {
  for (const char* line :
       {"f32 b1 h4:2 q5 k7 d3:4 causal", "f32 b2 h2 q3 k6 d4 softcap=1.5 sinks alibi bias=f32[1,h,q,k]",
        "f32 h2 d3 varlen=2:5,0:2,3:4 window=2,1 scale=-0.7", "f32 b1 h2 q4 k5 d3 mask=[1,1,q,k] layout=bshd"}) {
    const Problem p = parse_problem(line);
    const Inputs in = make_inputs(p, Fill::masked_rows, 1);
    const check::Reading reading(p, in);
    std::vector<double> d_out(static_cast<size_t>(reading.rows_q * p.head_dim_v));
    for (size_t n = 0; n < d_out.size(); ++n) d_out[n] = check::normal(9, 9, n);
    const check::Gradients g = check::backward(p, in, d_out);
    const auto loss = [&](const check::Reading& r) {
      const Reference ref = check::forward(r);
      double sum = 0;
      for (size_t n = 0; n < d_out.size(); ++n) sum += ref.out[n] * d_out[n];
      return sum;
    };
    const double step = std::ldexp(1.0, -12);
    for (const auto& [values, gradient] : {std::pair{&check::Reading::q, &g.dq}, std::pair{&check::Reading::k, &g.dk},
                                           std::pair{&check::Reading::v, &g.dv}})
      for (size_t n = 0; n < gradient->size(); ++n) {
        check::Reading up = reading, down = reading;
        (up.*values)[n] += step;
        (down.*values)[n] -= step;
        ASSERT_NEAR((loss(up) - loss(down)) / (2 * step), (*gradient)[n], 2e-6) << line << " element " << n;
      }
  }
}

// ---- plain and bounds

TEST(CheckBounds, PlainPassesItsOwnBoundsAndMissesThoseOfABetterFormat) {
  const auto plain_kernel = [](DType probability) {
    return [probability](const Problem& p, const Inputs& in, const Outputs& out) {
      check::plain(check::Reading(p, in), probability, out);
    };
  };
  for (const char* type : {"f16", "bf16"}) {
    const Problem p = parse_problem(std::string(type) + " b1 h2 q64 d64");
    EXPECT_TRUE(check_problem(p, Fill::normal, 1, plain_kernel(check::probability_format(p))).pass);
    EXPECT_FALSE(check_problem(p, Fill::normal, 1, plain_kernel(DType::e4m3)).pass) << type;
  }
  const Problem half = parse_problem("f16 b1 h2 q64 d64"), single = parse_problem("f32 b1 h2 q64 d64");
  EXPECT_FALSE(check_problem(half, Fill::normal, 1, plain_kernel(DType::bf16)).pass);
  EXPECT_FALSE(check_problem(single, Fill::normal, 1, plain_kernel(DType::f16)).pass);
}

constexpr const char* mission = "e4m3 out=f32 b1 h8 q512 d64 scales=head";

check::Kernel in_mode(PvMode pv) {
  return [pv](const Problem& p, const Inputs& in, const Outputs& out) {
    Problem changed = p;
    changed.pv = pv;
    kernel_with(check::Defect::none)(changed, in, out);
  };
}

// Arithmetic that is exact except for the weights has the errors from which the bounds of docs/fp8.md were derived.
TEST(CheckBounds, WeightsInFp8CostWhatTheGuideSays) {
  struct Cost {
    PvMode pv;
    double max_abs, mean_abs, rel_rms;
  };
  for (const Cost& cost : {Cost{PvMode::f16, 1.6e-4, 1.2e-5, 2.1e-4}, Cost{PvMode::fp8x2, 2.4e-4, 3.5e-5, 5.7e-4},
                           Cost{PvMode::fp8, 9e-3, 1.4e-3, 2.4e-2}}) {
    Problem p = parse_problem(mission);
    p.pv = cost.pv;
    const auto result = check_problem(p, Fill::normal, 1, in_mode(cost.pv));
    EXPECT_TRUE(result.pass) << result.message;
    EXPECT_NEAR(result.plain.max_abs, cost.max_abs, 0.2 * cost.max_abs);
    EXPECT_NEAR(result.plain.mean_abs, cost.mean_abs, 0.2 * cost.mean_abs);
    EXPECT_NEAR(result.plain.rel_rms, cost.rel_rms, 0.1 * cost.rel_rms);
  }
}

TEST(CheckBounds, AModeMissesTheBoundsOfABetterOne) {
  Problem p = parse_problem(mission);
  p.pv = PvMode::fp8x2;
  EXPECT_FALSE(check_problem(p, Fill::normal, 1, in_mode(PvMode::fp8)).pass);
  p.pv = PvMode::f16;
  EXPECT_FALSE(check_problem(p, Fill::normal, 1, in_mode(PvMode::fp8x2)).pass);
}

// The same without required_bounds, so the derived bounds alone must detect a difference between the modes.
TEST(CheckBounds, DerivedBoundsTellTheModesApart) {
  for (const Fill fill : {Fill::normal, Fill::outlier}) {
    Problem p = parse_problem("e4m3 out=f16 b1 h4 q64 k300 d64 scales=head");
    EXPECT_EQ(check::required_bounds(p, fill, 1).max_abs, infinity);
    p.pv = PvMode::fp8x2;
    EXPECT_TRUE(check_problem(p, fill, 1, in_mode(PvMode::fp8x2)).pass);
    EXPECT_FALSE(check_problem(p, fill, 1, in_mode(PvMode::fp8)).pass);
    if (fill == Fill::outlier) continue;  // here few keys matter, so two terms are nearly as exact as f16
    p.pv = PvMode::f16;
    EXPECT_FALSE(check_problem(p, fill, 1, in_mode(PvMode::fp8x2)).pass);
  }
}

// Weights in E4M3 without the factor of 256. Weights below 2^-6 lose bits, and weights below 2^-10 become 0. One key or
// a sink with a large logit makes all other weights small.
TEST(CheckBounds, UnscaledWeightsAreNoticed) {
  const Problem p = parse_problem("e4m3 out=f32 b1 h1 q64 k2000 d64 scales=head sinks pv=fp8");
  Inputs in = make_inputs(p, Fill::normal, 1);
  in.sinks.set({0}, 8);
  const check::Reading r(p, in);
  const Outputs sound = check::make_outputs(p), unscaled = check::make_outputs(p);
  kernel_with(check::Defect::none)(p, in, sound);
  for (int64_t i = 0; i < p.seqlen_q; ++i) {
    std::vector<float> row(64, 0.0f);
    double sum = 1;
    for (int64_t j = 0; j < p.seqlen_k; ++j) {
      const double weight = std::exp(r.logit(0, 0, i, j) - 8);
      sum += weight;
      for (size_t d = 0; d < 64; ++d)
        row[d] += static_cast<float>(check::round_to(DType::e4m3, weight) * r.v_row(0, 0, j)[d]);
    }
    for (float& x : row) x /= static_cast<float>(sum);
    check::store_row(r, 0, 0, i, row.data(), 0.0f, unscaled);
  }
  EXPECT_TRUE(judge(p, Fill::normal, in, sound).pass) << judge(p, Fill::normal, in, sound).message;
  EXPECT_FALSE(judge(p, Fill::normal, in, unscaled).pass);
}

TEST(CheckBounds, SmallProblemsPoolAtLeast4096Outputs) {
  const auto result =
      check_problem(parse_problem("f32 b1 h1 q3 k5 d16"), Fill::normal, 1, kernel_with(check::Defect::none));
  EXPECT_TRUE(result.pass) << result.message;
  EXPECT_EQ(result.samples, 86);  // ceil(4096 / 48)
  EXPECT_GE(result.out.count, 4096);
}

// ---- comparison

struct Compared {
  Problem problem = parse_problem("f16 b1 h2 q3 k5 d4 lse out_strides=64,24,6,1");
  Inputs inputs = make_inputs(problem, Fill::normal, 1);
  Reference reference = check::forward(problem, inputs);
  Outputs outputs = check::make_outputs(problem);
  Compared() { kernel_with(check::Defect::none)(problem, inputs, outputs); }
  check::Errors out() const { return check::compare_out(problem, outputs.out, reference); }
};

TEST(CheckCompare, CountsEachFault) {
  Compared c;
  EXPECT_TRUE(c.out().sound());
  EXPECT_LT(c.out().rel_rms, 1e-3);
  EXPECT_GT(c.out().cosine, 0.999999);
  c.outputs.out.set({0, 1, 2, 3}, std::nan(""));
  EXPECT_EQ(c.out().nan_count, 1);
  EXPECT_EQ(c.out().wrong_class, 1);
  EXPECT_EQ(check::describe_element(c.problem, c.out().worst, 4), "[b=0, h=1, i=2, d=3]");
}

TEST(CheckCompare, OneWrongElementIsFoundAndNamed) {
  Compared c;
  c.outputs.out.set({0, 0, 1, 2}, c.outputs.out.at({0, 0, 1, 2}) + 0.25);
  EXPECT_TRUE(c.out().sound());
  EXPECT_NEAR(c.out().max_abs, 0.25, 1e-3);
  EXPECT_EQ(check::describe_element(c.problem, c.out().worst, 4), "[b=0, h=0, i=1, d=2]");
}

TEST(CheckCompare, AnUnwrittenElementIsToldFromANan) {
  Compared c;
  const Outputs fresh = check::make_outputs(c.problem);
  EXPECT_EQ(check::compare_out(c.problem, fresh.out, c.reference).unwritten, 24);
  EXPECT_EQ(check::compare_lse(c.problem, fresh.lse, c.reference).unwritten, 6);
  c.outputs.out.set({0, 0, 0, 0}, std::nan(""));
  EXPECT_EQ(c.out().unwritten, 0);
  EXPECT_FALSE(c.out().sound());
}

TEST(CheckCompare, WritesBesideTheTensorAreFound) {
  for (const int64_t beside : {-1, 4, 5, 70}) {  // before the tensor, in the gaps of its strides, after the tensor
    Compared c;
    check::encode_element(DType::f16, c.outputs.out.data(), beside, 0.0);
    EXPECT_EQ(c.out().overwritten, 1) << beside;
  }
}

TEST(CheckCompare, RowsOfNoSequenceStayUntouched) {
  Problem p = parse_problem("f32 h1 d4 varlen=6:9,2:3 lse");
  const Inputs in = make_inputs(p, Fill::normal, 1);
  p.seqlen_q = 4;  // rows 4 and 5 belong to no sequence
  const Outputs outputs = check::make_outputs(p);
  kernel_with(check::Defect::none)(p, in, outputs);
  const Reference r = check::forward(p, in);
  EXPECT_TRUE(check::compare_out(p, outputs.out, r).sound());
  HostTensor out = outputs.out;  // shares the storage
  out.set({5, 0, 1}, 0);
  EXPECT_EQ(check::compare_out(p, outputs.out, r).overwritten, 1);
}

TEST(CheckCompare, NonFiniteValuesCountAsAClass) {
  Compared c;
  c.reference.out[0] = infinity;
  c.reference.out[1] = 1e6;  // larger than f16 can hold
  c.outputs.out.set({0, 0, 0, 0}, std::nan(""));
  c.outputs.out.set({0, 0, 0, 1}, infinity);
  EXPECT_TRUE(c.out().sound());
  c.outputs.out.set({0, 0, 0, 0}, 1.0);
  EXPECT_EQ(c.out().wrong_class, 1);
}

TEST(CheckCompare, AnEmptyRowNeedsExactlyMinusInfinity) {
  Compared c;
  c.reference.lse[2] = -infinity;
  for (const double wrong : {infinity, std::nan(""), -1e30}) {
    c.outputs.lse.set({0, 0, 2}, wrong);
    EXPECT_EQ(check::compare_lse(c.problem, c.outputs.lse, c.reference).wrong_class, 1) << wrong;
  }
  c.outputs.lse.set({0, 0, 2}, -infinity);
  EXPECT_TRUE(check::compare_lse(c.problem, c.outputs.lse, c.reference).sound());
}

TEST(CheckCompare, AnLseInTheWrongBaseOrWithoutTheScaleFails) {
  const Problem p = parse_problem("f32 b1 h2 q16 k40 d16");
  const auto result =
      check_problem(p, Fill::normal, 1, [](const Problem& problem, const Inputs& in, const Outputs& out) {
        kernel_with(check::Defect::none)(problem, in, out);
        HostTensor lse = out.lse;
        for (int64_t i = 0; i < 16; ++i) lse.set({0, 1, i}, lse.at({0, 1, i}) * 1.00002);
      });
  EXPECT_FALSE(result.pass);
  EXPECT_GT(result.lse_share, 1);
  EXPECT_NE(result.message.find("h=1"), std::string::npos) << result.message;
}

TEST(CheckProblem, ARefusalIsNotAPass) {
  const auto result = check_problem(
      parse_problem("f32 b1 h1 q4 d4"), Fill::normal, 3,
      [](const Problem&, const Inputs&, const Outputs&) { unsupported("head_dim 4: this kernel takes none"); });
  EXPECT_FALSE(result.pass);
  EXPECT_TRUE(result.refused);
  EXPECT_EQ(result.message, "head_dim 4: this kernel takes none");
  EXPECT_NE(result.command.find("--seed 3"), std::string::npos);
}

// Several kernels are checked together, in every order. No kernel must get the outputs, samples or sentence of another
// one.
TEST(CheckProblem, SeveralKernelsAreJudgedEachByItself) {
  const Problem p = parse_problem("f32 b1 h2 q8 k150 d16");  // 16 samples
  const check::Kernel good = kernel_with(check::Defect::none), bad = kernel_with(check::Defect::dropped_tail_tile);
  const check::Kernel none = [](const Problem&, const Inputs&, const Outputs&) { unsupported("takes none"); };
  for (const std::vector<check::Kernel>& kernels : {std::vector{good, bad, none}, {none, bad, good}}) {
    const std::vector<check::Result> results = check_problem(p, Fill::normal, 1, kernels);
    ASSERT_EQ(results.size(), 3u);
    for (size_t n = 0; n < 3; ++n) {
      const check::Result alone = check_problem(p, Fill::normal, 1, kernels[n]);
      EXPECT_EQ(results[n].pass, alone.pass) << n;
      EXPECT_EQ(results[n].refused, alone.refused) << n;
      EXPECT_EQ(results[n].message, alone.message) << n;
      EXPECT_EQ(results[n].samples, alone.samples) << n;
      EXPECT_EQ(results[n].out.max_abs, alone.out.max_abs) << n;
    }
    EXPECT_EQ(results[0].pass + results[1].pass + results[2].pass, 1);
  }
}

// ---- inputs that overflow f32 (these call the library)

struct Beyond {
  const char* line;
  std::function<void(Inputs&)> change;
  const char* sentence;  // a part of the sentence; "" if f32 can hold all values
};

// check and check --stages refuse the same problems: those whose scores or sums overflow f32.
TEST(CheckRange, BothChecksRefuseWhatF32CannotHold) {
  const auto set = [](HostTensor& t, double x) {
    for (int64_t j = 0; j < 4; ++j) t.set({0, 0, j, 1}, x);
  };
  const std::vector<Beyond> cases = {
      {"f32 b1 h1 q4 d4 scale=3e38", [](Inputs&) {}, "|softmax_scale| times the sum of |q * k| of row [b=0, h=0, i=0]"},
      {"f32 b1 h1 q4 d4 scale=-3e38 causal", [](Inputs&) {}, "|softmax_scale| times"},
      {"f32 b1 h1 q4 d4 scale=0", [&](Inputs& in) { set(in.q, 1e25), set(in.k, 1e25); }, "the sum of |q * k|"},
      {"f32 b1 h1 q4 d4 bias=f32[1,1,1,1]",
       [](Inputs& in) {
         in.bias.set({0, 0, 0, 0}, -3.4028234e38);
       },
       ""},
      {"f32 b1 h1 q4 d4 bias=f32[1,1,1,1] scale=3e37",
       [](Inputs& in) {
         in.bias.set({0, 0, 0, 0}, 3.4e38);
       },
       "outside the range of f32"},
      {"f32 b1 h1 q4 d4 alibi", [](Inputs& in) { in.alibi_slopes.set({0}, 3e38); }, "ALiBi of row [b=0, h=0, i=0]"},
      {"f32 b1 h1 q4 d4 scale=0", [&](Inputs& in) { set(in.v, 1e38); }, "the sum of exp(x - max) * |v|"},
      {"f32 b1 h1 q4 d4 scale=0", [&](Inputs& in) { set(in.v, 8e37); }, ""},
      {"f32 b1 h1 q4 d4 scale=0 window=0,0", [&](Inputs& in) { set(in.v, 3e38); }, ""},  // one key per row
      {"f32 b1 h1 q4 d4", [&](Inputs& in) { set(in.v, infinity), set(in.k, std::nan("")); }, ""},
      {"f32 b1 h1 q4 d4 scale=1e30", [](Inputs&) {}, ""},
      {"f16 b1 h2 q9 k0 d8 scale=3e38", [](Inputs&) {}, ""},
  };
  for (const Beyond& c : cases) {
    SCOPED_TRACE(c.line);
    const Problem problem = parse_problem(c.line);
    Inputs in = make_inputs(problem, Fill::normal, 1);
    c.change(in);
    const std::string sentence = check::beyond_f32(check::Reading(problem, in));
    if (*c.sentence == 0) {
      EXPECT_EQ(sentence, "");
    } else {
      EXPECT_NE(sentence.find(c.sentence), std::string::npos) << sentence;
      const check::Result result = check::judge(problem, std::nullopt, in, check::make_outputs(problem));
      EXPECT_TRUE(result.refused && !result.pass);
      EXPECT_EQ(result.message, sentence);
    }
  }
}

TEST(CheckRange, BothChecksGiveOneVerdict) {
  for (const char* scale : {"1e17", "-1e20", "1e30", "1e36"}) {  // large, but within f32
    const Problem problem = parse_problem(concat("f32 b1 h1 q8 d16 scale=", scale));
    const check::Result result = check::check_problem(problem, Fill::normal, 1, check::library_kernel());
    EXPECT_TRUE(result.pass) << result.message << "\n" << result.command;
    const check::StageReport stages =
        check::check_stages(problem, Fill::normal, 1, check::probe(check::library_kernel()));
    EXPECT_TRUE(stages.pass) << stages.message << "\n" << stages.command;
  }
  for (const char* line : {"f32 b1 h1 q8 d16 scale=3e38", "f16 b1 h2 q70 d16 scale=-3e38 causal softcap=30",
                           "bf16 b2 h2 q3 k200 d8 scale=3e38 lse"}) {
    const Problem problem = parse_problem(line);
    const check::Result result = check::check_problem(problem, Fill::normal, 1, check::library_kernel());
    const check::StageReport stages =
        check::check_stages(problem, Fill::normal, 1, check::probe(check::library_kernel()));
    EXPECT_TRUE(result.refused && stages.refused && !result.pass && !stages.pass) << line;
    EXPECT_EQ(result.message, stages.message) << line;
    EXPECT_NE(result.message.find("outside the range of f32: not judged (docs/semantics.md, Limits)"),
              std::string::npos)
        << line;
  }
  const check::StageReport refused = check::check_stages(parse_problem("f32 b1 h1 q8 d16 mod=ab"), Fill::normal, 1,
                                                         check::probe(check::library_kernel()));
  EXPECT_TRUE(refused.refused && !refused.pass) << refused.message;
}

// ---- case files

TEST(CheckCases, EverySetParses) {
  for (const char* set : {"smoke", "seed", "ragged", "mask", "varlen", "quant", "paged", "perf", "perf-long",
                          "features", "features-small"}) {
    const auto cases = check::load_cases(set, cases_directory);
    EXPECT_GE(cases.size(), 10u) << set;
    for (const check::Case& c : cases) {
      EXPECT_NO_THROW(c.problem()) << c.where();
      EXPECT_FALSE(c.fills.empty()) << c.where();
    }
  }
}

// With RAPT_TEST_QUICK only a fourth of the cases runs.
TEST(CheckCases, CheckOwnKernelPassesTheSmallSets) {
  const bool quick = std::getenv("RAPT_TEST_QUICK") != nullptr;
  int n = 0;
  for (const char* set : {"smoke", "varlen", "quant"})
    for (const check::Case& c : check::load_cases(set, cases_directory))
      for (const Fill fill : c.fills) {
        if (quick && n++ % 4 != 0) continue;
        const auto result = check_problem(c.problem(), fill, 1, kernel_with(check::Defect::none));
        EXPECT_TRUE(result.pass) << c.where() << ": " << result.command << ": " << result.message;
      }
}

TEST(CheckCases, ErrorsNameFileAndLine) {
  const std::string path = testing::TempDir() + "rapt_bad_cases.txt";
  std::ofstream(path) << "# a comment\nf32 q4 d4\n\nf32 q4 d4 ; fills=normal,nothing\n";
  try {
    check::load_cases(path);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(path + ":4"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("nothing"), std::string::npos) << error.what();
  }
  EXPECT_THROW(check::load_cases("no_such_set", cases_directory), Error);
}

}  // namespace
}  // namespace rapt
