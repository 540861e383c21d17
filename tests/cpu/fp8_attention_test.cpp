// Tests FP8 attention on the CPU: every storage format, kind of scales and pv mode, for every instruction set of the
// machine. Results are compared with the oracle (with the bounds of check/), with exact arithmetic, or with an
// equivalent problem.
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "check/check.h"
#include "check/oracle.h"
#include "cpu/isa.h"
#define RAPT_SCALAR_ISA  // this file needs only the rounding of weights of cpu/convert.h, in plain loops
#include "base/error.h"
#include "cpu/convert.h"
#include "isa.h"
#include "rapt/rapt.hpp"
#include "support.h"

namespace rapt::test {
namespace {

class Fp8AttentionOn : public testing::TestWithParam<CpuIsa> {
 protected:
  IsaLimit limit_{GetParam()};
};

// A pv mode, and the largest relative change of a weight in this mode.
struct Mode {
  std::string words;
  double rounding;
};
const std::vector<Mode> modes = {
    {"", 0}, {" pv=f16", 0}, {" pv=fp8", std::ldexp(1, -4)}, {" pv=fp8x2", std::ldexp(1, -8)}};

void for_each_mode(const std::function<void(const Mode&)>& body) {
  for (const Mode& mode : modes) {
    SCOPED_TRACE(mode.words);
    body(mode);
  }
}

// The instruction sets to test. FP8 problems never use bf16 products, so on a machine with them, calls are planned for
// avx512.
std::vector<CpuIsa> isas_for_fp8() {
  std::vector<CpuIsa> isas = available_cpu_isas();
  std::erase(isas, CpuIsa::avx512_bf16);
  return isas;
}

// Expects the line to pass on every instruction set.
void expect_pass(const std::string& line, check::Fill fill = check::Fill::normal) {
  const std::vector<CpuIsa> isas = isas_for_fp8();
  std::vector<check::Kernel> kernels;
  for (const CpuIsa isa : isas)
    kernels.push_back([isa, library = check::library_kernel()](const auto& problem, const auto& in, const auto& out) {
      const IsaLimit limit(isa);
      library(problem, in, out);
    });
  const std::vector<check::Result> results = check::check_problem(parse_problem(line), fill, 1, kernels);
  for (size_t n = 0; n < isas.size(); ++n)
    EXPECT_TRUE(results[n].pass) << name_of(isas[n]) << ": " << results[n].message << "\n    " << results[n].command;
}

// Scales that differ from each other by more than any rounding.
void fill_scales(Call& call) {
  for (HostTensor* scales : {&call.in.q_descale, &call.in.k_descale, &call.in.v_descale}) {
    int64_t n = 0;
    if (scales->present()) fill(*scales, [&](const auto&) { return 0.25 * static_cast<double>(1 + n++ % 3); });
  }
}

// Compares the outputs of a call with the float64 oracle of `truth`, which can be an equivalent problem. Rounding
// changes a weight by at most mode.rounding times the weight, or by half the distance of subnormal numbers: 2^-18 times
// the largest weight of the row.
struct Truth {
  explicit Truth(const Call& call) : problem(call.problem) {
    const check::Reading reading(problem, call.in);
    reference = check::forward(reading);
    for (const double x : reading.v) largest_v = std::max(largest_v, std::abs(x));
  }
  Problem problem;
  check::Reference reference;
  double largest_v = 0;
};
void expect_near_oracle(const Call& call, const Truth& truth, const Mode& mode) {
  const Problem& p = truth.problem;
  const check::Reference& reference = truth.reference;
  const double lost = mode.rounding > 0 ? std::ldexp(static_cast<double>(p.seqlen_k), -18) * truth.largest_v : 0;
  int64_t row = 0, misses = 0;
  double worst = 0;
  const auto within = [&](double got, double wanted, double allowed) {
    const bool right = std::isfinite(wanted) ? std::abs(got - wanted) <= allowed : got == wanted;
    if (!right && misses++ == 0) worst = got - wanted;
  };
  each_index(call.out.lse.shape, [&](const auto& at) {
    const auto r = static_cast<size_t>(row++);
    if (reference.state[r] != check::RowState::computed) return;
    const double logit_error = std::ldexp(reference.logit_size[r], -21);
    std::vector<int64_t> element = p.varlen ? std::vector{at[1], at[0], int64_t{0}} : at;
    if (!p.varlen) element.push_back(0);
    for (int64_t d = 0; d < p.head_dim_v; ++d) {
      const size_t i = r * static_cast<size_t>(p.head_dim_v) + static_cast<size_t>(d);
      element.back() = d;
      within(call.out.out.at(element), reference.out[i],
             tolerance(call.problem, reference.weighted_v[i]) + 2 * logit_error * reference.spread_v[i] +
                 mode.rounding * reference.weighted_v[i] + lost);
    }
    within(call.out.lse.at(at), reference.lse[r], lse_tolerance(reference.lse[r]) + logit_error);
  });
  EXPECT_EQ(misses, 0) << "values leave their bound, the first by " << worst << ", in " << to_string(call.problem);
}

}  // namespace

TEST(Fp8Attention, EveryStorageScaleAndMode) {
  for (const char* storage : {"e4m3", "e5m2", "sim8", "q=bf16 k=e4m3 v=e4m3", "q=f32 k=e5m2 v=sim8"})
    for (const char* kind : {"", "tensor", "head", "token", "block64", "block128", "channel"})
      for (const Mode& mode : modes) {
        if (mode.words.empty() || (quick() && mode.words != " pv=fp8")) continue;
        std::string scales;
        if (*kind != 0)
          for (const std::string which : {"q", "k", "v"}) {
            if (which == "q" && storage[0] == 'q') continue;
            const bool channels = std::string(kind) == "channel" && which != "v";
            scales += " " + which + "_scales=" + (channels ? "head" : kind);
          }
        expect_pass(std::string(storage) + " out=f32 b1 h4:2 q20 k150 d32 causal" + scales + mode.words);
      }
}

TEST(Fp8Attention, EveryFeatureInEveryMode) {
  using check::Fill;
  const std::pair<const char*, Fill> lines[] = {
      {"b2 h4:2 q1 k700 d64 scales=head", Fill::normal},
      {"b1 h8:1 q1 k2000 d64 scales=token splits=3", Fill::normal},
      {"b1 h2 q40 k90 d64:40 scales=block64 window=20,3 softcap=8 alibi sinks", Fill::normal},
      {"b1 h2 q40 k300 d20 scales=head mask=[1,h,q,k]", Fill::masked_rows},
      {"b1 h2 q40 k300 d20 scales=head bias=f16[1,1,q,k] smooth_k", Fill::masked_rows},
      {"b2 h2 q40 k90 d32 scales=token seqused=66,0", Fill::hidden_nan},
      {"h4:2 d32 varlen=17:40,0:5,130:130,1:300,9:0 scales=token causal smooth_k sinks", Fill::hidden_nan},
      {"h4:2 d32 varlen=17:40,0:5,130:130,1:300 scales=block128 layout=bshd", Fill::seen_nan},
      {"b1 h4:2 q70 d33:17 scales=tensor causal layout=bshd smooth_k softcap=6", Fill::seen_nan},
      {"b1 h2 q9 k130 d16 scales=head q_strides=16,160,-16,1 k_strides=9000,4500,33,2 v_strides=9000,4500,1,150",
       Fill::normal},
      {"b1 h2 q40 k200 d32 scales=block64 q_start=100 causal invariant smooth_k", Fill::outlier},
      {"b1 h2 q40 k300 d32 scales=block64 out=f32 partial lse smooth_k splits=2", Fill::normal},
      {"b1 h2 q17 k150 d64 scales=head", Fill::constant},
      {"b1 h2 q17 k150 d64 scales=head", Fill::near_ties},
      {"b1 h2 q17 k150 d64 scales=head softcap=30 smooth_k", Fill::huge},
      {"b1 h2 q3 k300 d64 scales=head", Fill::rescale}};
  for_each_mode([&](const Mode& mode) {
    int n = 0;
    for (const auto& [line, fill] : lines) {
      if (quick() && n++ % 4 != 0) continue;
      const bool has_out = std::string(line).find("out=") != std::string::npos;
      expect_pass(std::string("e4m3 ") + (has_out ? "" : "out=f16 ") + line + mode.words, fill);
    }
  });
}

namespace {

// The E4M3 number nearest to y >= 0, with ties to even. Computed in double, without the library's code.
double nearest_e4m3(double y) {
  const double step = std::ldexp(1, std::max(std::ilogb(std::max(y, 1e-30)), -6) - 3);
  return std::nearbyint(y / step) * step;
}
double rounded(const Mode& mode, double w) {
  if (mode.rounding == 0) return w;
  const double high = nearest_e4m3(256 * w), rest = 256 * w - high;
  if (mode.words == " pv=fp8") return high / 256;
  return (high + std::copysign(nearest_e4m3(std::abs(rest)), rest)) / 256;
}

}  // namespace

// V is the identity matrix, so the output shows the weights. A bias sets the weights: from 1, the largest, to values
// below the smallest subnormal.
TEST_P(Fp8AttentionOn, WeightsAreRoundedToNearestEven) {
  for_each_mode([](const Mode& mode) {
    for (const char* rows : {"q1", "q20"}) {
      Call call = make(std::string("q=f32 k=f32 v=e4m3 out=f32 b1 h1 ") + rows + " k200 d8:200 bias=f32[1,1,q,k] lse" +
                       mode.words);
      fill_identity(call.in.v);
      fill_hash(call.in.bias, 3);
      fill(call.in.bias,
           [&, uniform = call.in.bias](const auto& at) { return at[3] == 0 ? 0.0 : 7.0 * (uniform.at(at) - 1); });
      run(call);
      int64_t changed = 0;
      each_index(call.out.out.shape, [&](const auto& at) {
        const double w = std::exp(call.in.bias.at({0, 0, at[2], at[3]}));
        const double got = call.out.out.at(at) * std::exp(call.out.lse.at({0, 0, at[2]}));
        const double low = rounded(mode, w * (1 - 3e-6)), high = rounded(mode, w * (1 + 3e-6));  // differ near a tie
        EXPECT_TRUE(std::abs(got - low) <= 3e-6 * low || std::abs(got - high) <= 3e-6 * high)
            << "weight " << w << " became " << got << " instead of " << low;
        changed += std::abs(got - w) > 1e-5 * w;
      });
      EXPECT_EQ(changed > 0, mode.rounding > 0);
    }
  });
}

// Tests the rounding function with weights that exponentials do not hit exactly: every tie and its neighbours, every
// code, and the ends of the range.
TEST(Fp8Weights, AreRoundedLikeE4m3Everywhere) {
  std::vector<float> weights = {0.0f,
                                1.0f,
                                std::nextafter(1.0f, 0.0f),
                                1e-30f,
                                1e-40f,
                                std::numeric_limits<float>::quiet_NaN(),
                                detail::float_of(0x7fffffffu)};
  for (unsigned char code = 0; e4m3_to_float(code) < 256; ++code) {
    const float low = e4m3_to_float(code) / 256, high = e4m3_to_float(static_cast<unsigned char>(code + 1)) / 256;
    const float middle = (low + high) / 2;
    for (const float w : {low, middle})
      weights.insert(weights.end(), {w, std::nextafter(w, 0.0f), std::nextafter(w, 1.0f)});
    weights.push_back(middle + (high - low) / 32);  // the second term of this weight is a tie
  }
  for (const int terms : {1, 2}) {
    std::vector<float> got = weights;
    cpu::round_weights(terms, std::ssize(got), got.data());
    for (size_t i = 0; i < weights.size(); ++i) {
      const float high = e4m3_to_float(float_to_e4m3(256 * weights[i]));
      const float low = terms == 2 ? e4m3_to_float(float_to_e4m3(256 * weights[i] - high)) : 0.0f;
      const float wanted = (high + low) / 256;
      EXPECT_TRUE(std::isnan(wanted) ? std::isnan(got[i]) : got[i] == wanted)
          << weights[i] << " became " << got[i] << " instead of " << wanted;
    }
  }
}

// V holds every code, and one key has all the weight. V is contiguous (with a tail of every length) or strided.
TEST_P(Fp8AttentionOn, EveryCodeOfV) {
  int n = 0;
  for (DType type : {DType::e4m3, DType::e5m2, DType::sim8})
    for (const char* shape : {"q1 k1 d8:256", "q20 k1 d8:256", "q1 k1 d8:251", "q20 k1 d8:251",
                              "q1 k1 d8:256 v_strides=512,512,512,2", "q20 k1 d8:249 v_strides=512,512,512,-2"})
      for_each_mode([&](const Mode& mode) {
        SCOPED_TRACE(std::string(name_of(type)) + " " + shape);
        Call call = make(std::string("q=f32 k=f32 v=") + name_of(type) + " out=f32 b1 h1 v_scales=tensor " + shape +
                         mode.words);
        const float factor = n++ % 3 == 0 ? 0x1p120f : 0.37f;  // sometimes so large that some products overflow
        fill(call.in.v_descale, static_cast<double>(factor));
        const int64_t stride = call.in.v.strides[3];
        for (int64_t d = 0; d < call.problem.head_dim_v; ++d) call.in.v.data()[d * stride] = static_cast<std::byte>(d);
        run(call);
        each_index(call.out.out.shape, [&](const auto& at) {
          const auto stored = static_cast<float>(call.in.v.at({0, 0, 0, at[3]}));
          const double got = call.out.out.at(at), wanted = static_cast<double>(stored * factor);
          EXPECT_TRUE(std::isnan(wanted) ? std::isnan(got) : got == wanted)
              << "code " << at[3] << ": " << got << " instead of " << wanted;
        });
      });
}

TEST_P(Fp8AttentionOn, OneKeyTakesAll) {
  const int64_t keys = 300;
  for_each_mode([&](const Mode& mode) {
    for (const char* rows : {"q1", "q20"}) {
      Call call = make(std::string("e4m3 out=f32 b1 h1 ") + rows + " k300 d16 scale=1 v_scales=head lse" + mode.words);
      fill(call.in.q, [](const auto& at) { return at[3] == 0 ? 448 : 0; });
      fill_hash(call.in.v, 1);
      fill(call.in.v_descale, 0.3);
      const auto factor = static_cast<float>(call.in.v_descale.at({0, 0}));
      for (int64_t winner : {0, 1, 95, 96, 127, 128, 129, 255, 256, 299}) {
        SCOPED_TRACE(winner);
        fill(call.in.k, [&](const auto& at) { return at[2] == winner && at[3] == 0 ? 448 : 0; });
        run(call);
        each_index(call.out.out.shape, [&](const auto& at) {
          const auto stored = static_cast<float>(call.in.v.at({0, 0, winner, at[3]}));
          EXPECT_EQ(call.out.out.at(at), static_cast<double>(stored * factor));
        });
        each_index(call.out.lse.shape, [&](const auto& at) { EXPECT_EQ(call.out.lse.at(at), 448.0 * 448.0); });
      }
      fill(call.in.k, 0);  // all keys are equal, so all weights are 1 and the result is exactly the mean
      fill(call.in.v, [](const auto& at) { return static_cast<double>(at[2] % 2 == 0 ? 3 : -1); });
      fill(call.in.v_descale, 1);
      run(call);
      each_index(call.out.out.shape, [&](const auto& at) { EXPECT_NEAR(call.out.out.at(at), 1.0, 1e-6); });
      each_index(call.out.lse.shape,
                 [&](const auto& at) { EXPECT_NEAR(call.out.lse.at(at), std::log(keys), lse_tolerance(6)); });
    }
  });
}

// All modes and instruction sets are compared with the result of one call of the oracle.
TEST(Fp8Attention, EveryLengthOfKeys) {
  const std::vector<CpuIsa> isas = isas_for_fp8();
  for (const char* words :
       {"e4m3 out=f16 b1 h2:1 q3 d24:20 scales=block64", "e5m2 out=f32 b1 h2:1 q20 d16 scales=block128"}) {
    const std::string options = std::string(words) + " lse";
    Call longest = make(options + " k640");
    fill_hash(longest);
    fill_scales(longest);
    const int64_t block = longest.problem.k_scales == ScaleKind::block64 ? 64 : 128;
    for (int64_t keys = 1; keys <= 640; ++keys) {
      if (quick() && keys % 37 != 0 && keys % 128 > 1) continue;
      const std::string line = options + " k" + std::to_string(keys);
      Call call;
      call.problem = parse_problem(line);
      call.in = longest.in;
      call.in.k = slice(longest.in.k, 2, 0, keys);
      call.in.v = slice(longest.in.v, 2, 0, keys);
      call.in.k_descale = slice(longest.in.k_descale, 2, 0, (keys + block - 1) / block);
      call.in.v_descale = slice(longest.in.v_descale, 2, 0, (keys + block - 1) / block);
      const Truth truth(call);
      for_each_mode([&](const Mode& mode) {
        if (mode.words.empty()) return;  // pv=f16
        call.problem = parse_problem(line + mode.words);
        for_each_isa(isas, [&] { expect_near_oracle(run(call), truth, mode); });
      });
      if (testing::Test::HasFailure()) return;  // one failing length is enough
    }
  }
}

// Row i sees keys from 128 * (i % 4) on. So the first tiles are completely masked, and every fourth row sees no key.
TEST_P(Fp8AttentionOn, FirstTilesHidden) {
  for_each_mode([](const Mode& mode) {
    for (const char* rows : {"q8", "q40"}) {
      Call call =
          make(std::string("e4m3 out=f32 b1 h1 ") + rows + " k384 d32 scales=block128 mask=[1,1,q,k] lse" + mode.words);
      fill_hash(call);
      fill_scales(call);
      fill(call.in.mask, [](const auto& at) { return at[3] >= 128 * (at[2] % 4) ? 1 : 0; });
      run(call);
      expect_near_oracle(call, Truth(call), mode);
      for (int64_t i = 3; i < call.problem.seqlen_q; i += 4) expect_empty_row(call, {0, 0, i});
      // A NaN that only every fourth row sees changes only those rows.
      Call poisoned = make(to_string(call.problem));
      poisoned.in = call.in;
      poisoned.in.v = make_tensor(DType::e4m3, call.in.v.shape);
      fill(poisoned.in.v, [&](const auto& at) { return at[2] == 100 ? nan : call.in.v.at(at); });
      run(poisoned);
      for (int64_t i = 0; i < call.problem.seqlen_q; ++i) {
        if (i % 4 == 0)
          each_index({32}, [&](const auto& d) { EXPECT_TRUE(std::isnan(poisoned.out.out.at({0, 0, i, d[0]}))); });
        else
          expect_same_bits(slice(poisoned.out.out, 2, i, i + 1), slice(call.out.out, 2, i, i + 1));
      }
      expect_same_bits(poisoned.out.lse, call.out.lse);
    }
  });
}

namespace {

// The same problem, but its keys are k * k_descale + k_mean, stored in f32.
Call with_keys_themselves(const Call& smoothed) {
  Call plain = smoothed;
  Problem& p = plain.problem;
  p.smooth_k = false, p.k = DType::f32, p.k_scales = ScaleKind::none;
  plain.in.k_mean = plain.in.k_descale = {};
  plain.in.k = make_tensor(DType::f32, smoothed.in.k.shape);
  fill(plain.in.k, [&](const auto& at) {  // there is one scale for each head
    const int64_t h = at[1], b = p.varlen ? (at[0] < p.lengths_k[0] ? 0 : 1) : at[0];
    return smoothed.in.k.at(at) * smoothed.in.k_descale.at({b, h}) + smoothed.in.k_mean.at({b, h, at.back()});
  });
  return plain;
}

Call smoothed_call(const std::string& line) {
  Call call = make(line);
  fill_hash(call);
  fill_scales(call);
  if (call.in.bias.present()) fill_hash(call.in.bias, 8);
  if (call.in.sinks.present()) fill_hash(call.in.sinks, 9);
  if (call.in.alibi_slopes.present()) fill(call.in.alibi_slopes, 0.02);
  const Problem& p = call.problem;
  call.in.k_mean = make_tensor(DType::f32, {p.batch, p.heads_k, p.head_dim});
  fill_hash(call.in.k_mean, 10);
  fill(call.in.k_mean, [&, mean = call.in.k_mean](const auto& at) { return 3 * mean.at(at); });
  return call;
}

}  // namespace

TEST(Fp8Attention, SmoothedKeysGiveWhatTheKeysGive) {
  const std::vector<CpuIsa> isas = isas_for_fp8();
  for (const std::string shape :
       {"b2 h4:2 q2 k200 d24", "b2 h4:2 q37 k200 d24", "b1 h2 q1 k3000 d64 splits=3", "h4:2 d24 varlen=5:150,40:66"})
    for (const std::string options :
         {"", " causal sinks", " softcap=2", " softcap=2 sinks scale=-0.3", " alibi window=70,3",
          " bias=f32[1,h,q,k] softcap=3", " scale=0", " invariant softcap=2"}) {
      if (options == " invariant softcap=2" && shape.find("splits") != std::string::npos) continue;
      SCOPED_TRACE(shape + options);
      const std::string line = concat("e4m3 out=f32 ", shape, " scales=head smooth_k lse", options);
      Call call = smoothed_call(line);
      const Truth truth(with_keys_themselves(call));
      for_each_mode([&](const Mode& mode) {
        call.problem = parse_problem(line + mode.words);
        for_each_isa(isas, [&] { expect_near_oracle(run(call), truth, mode); });
      });
    }
}

TEST_P(Fp8AttentionOn, MeansOfAnyStrides) {
  for (const char* shape : {"b2 h4:2 q2 k100 d24", "b2 h4:2 q20 k100 d24"}) {
    Call call = smoothed_call(std::string("e4m3 out=f32 ") + shape + " scales=head smooth_k lse"), strided = call;
    strided.in.k_mean = copy_with_strides(call.in.k_mean, {200, 100, -3});
    expect_same_bits(run(strided), run(call));
    Call shared = call, copied = call;  // all heads and sequences have the same mean
    shared.in.k_mean = make_strided(DType::f32, {2, 2, 24}, {0, 0, 2});
    fill(shared.in.k_mean, [](const auto& at) { return 0.1 * static_cast<double>(at[2]) - 1; });
    copied.in.k_mean = make_tensor(DType::f32, {2, 2, 24});
    fill(copied.in.k_mean, [&](const auto& at) { return shared.in.k_mean.at(at); });
    expect_same_bits(run(shared), run(copied));
  }
}

namespace {

Tensor tensor_of(const HostTensor& t) {
  if (!t.present()) return {};
  return Tensor(static_cast<void*>(t.data()), static_cast<Type>(t.dtype), t.shape, t.strides);
}

}  // namespace

// If smoothed keys are split into parts, all parts use the mean of all keys. The merge adds the sink.
TEST_P(Fp8AttentionOn, MergingPartsOfSmoothedKeysIsTheWhole) {
  for_each_mode([](const Mode& mode) {
    for (const std::string options : {"", " softcap=2", " causal window=150,0"}) {
      SCOPED_TRACE(options);
      Call whole =
          smoothed_call(concat("e4m3 out=f32 b1 h4:2 q9 k200 d24 scales=head smooth_k sinks lse", options, mode.words));
      std::vector<Call> calls;
      for (const auto& [begin, end] : {std::pair{0, 70}, {70, 70}, {70, 128}, {128, 200}}) {
        Call part = make("e4m3 out=f32 b1 h4:2 q9 k" + std::to_string(end - begin) +
                         " d24 scales=head smooth_k partial lse q_start=191 k_start=" + std::to_string(begin) +
                         options + mode.words);
        part.in = whole.in;
        part.in.sinks = {};
        part.in.k = slice(whole.in.k, 2, begin, end);
        part.in.v = slice(whole.in.v, 2, begin, end);
        calls.push_back(run(part));
      }
      std::vector<PartialState> parts;
      for (const Call& call : calls) parts.push_back({tensor_of(call.out.out), tensor_of(call.out.lse)});
      whole.out = check::make_outputs(whole.problem);
      merge(parts, tensor_of(whole.out.out), {.lse = tensor_of(whole.out.lse), .sinks = tensor_of(whole.in.sinks)});
      expect_near_oracle(whole, Truth(with_keys_themselves(whole)), mode);
    }
  });
}

TEST_P(Fp8AttentionOn, TheSameBitsWheneverAndHoweverManyThreads) {
  for_each_mode([](const Mode& mode) {
    for (const char* shape : {"b2 h4:2 q150 k150 d32 causal", "b1 h4:2 q1 k3000 d32", "b1 h2 q3 k3000 d32 splits=7"}) {
      Call one = smoothed_call(std::string("e4m3 out=f32 ") + shape + " scales=head smooth_k lse" + mode.words);
      const Context single({.num_threads = 1});
      run(one, single.get());
      for (int32_t threads : {1, 2, 5}) {
        const Context context({.num_threads = threads});
        Call several = one;
        expect_same_bits(run(several, context.get()), one);
      }
    }
  });
}

TEST_P(Fp8AttentionOn, InvariantRowsDependOnNothingElse) {
  for_each_mode([](const Mode& mode) {
    for (const std::string cap : {"", " softcap=2"}) {
      const std::string options = " k300 d32 scales=head smooth_k lse invariant" + cap + mode.words;
      Call together = smoothed_call("e4m3 out=f32 b3 h4:2 q37" + options);
      run(together);
      for (const auto& [b, h, i] : {std::array<int64_t, 3>{0, 0, 0}, {1, 2, 17}, {2, 3, 36}}) {
        Call alone = make("e4m3 out=f32 b1 h1 q1" + options);
        const auto part = [&, b = b](const HostTensor& t, int64_t head) {
          return slice(slice(t, 0, b, b + 1), 1, head, head + 1);
        };
        alone.in.q = slice(part(together.in.q, h), 2, i, i + 1);
        alone.in.q_descale = part(together.in.q_descale, h);
        alone.in.k = part(together.in.k, h / 2), alone.in.v = part(together.in.v, h / 2);
        alone.in.k_descale = part(together.in.k_descale, h / 2);
        alone.in.v_descale = part(together.in.v_descale, h / 2);
        alone.in.k_mean = part(together.in.k_mean, h / 2);
        run(alone);
        expect_same_bits(alone.out.out, slice(part(together.out.out, h), 2, i, i + 1));
        EXPECT_EQ(alone.out.lse.at({0, 0, 0}), together.out.lse.at({b, h, i}));
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Isa, Fp8AttentionOn, testing::ValuesIn(isas_for_fp8()), isa_name);

}  // namespace rapt::test
