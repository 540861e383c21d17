// Tests properties of attention that need no reference, and compares every number of keys with the oracle. Runs for
// every dtype and every instruction set of the machine.
#include <gtest/gtest.h>

#include <array>
#include <numeric>

#include "check/poison.h"
#include "cpu/isa.h"
#include "isa.h"
#include "rapt/rapt.hpp"
#include "support.h"

namespace rapt::test {
namespace {

class PropertyOn : public testing::TestWithParam<CpuIsa> {
 protected:
  IsaLimit limit_{GetParam()};
};

// The dtypes of q, k, v and out, as words of a problem line.
const std::vector<std::string> storages = {"f32", "f16", "bf16", "e4m3 out=f16", "q=bf16 k=e5m2 v=e5m2 out=f32"};

void for_each_storage(const std::function<void(const std::string&)>& body) {
  for (const std::string& words : storages) {
    SCOPED_TRACE(words);
    body(words);
  }
}

// Fills a tensor with integers of magnitude up to `most`. In every format here, sums of a few such integers are exact
// up to 8.
void fill_whole(HostTensor& tensor, uint64_t seed, int most) {
  fill_hash(tensor, seed);
  each_index(tensor.shape, [&](const auto& at) { put(tensor, at, std::nearbyint(tensor.at(at) * most)); });
}

void fill_whole(Call& call, uint64_t seed = 1) {
  fill_whole(call.in.q, 3 * seed, 1);
  fill_whole(call.in.k, 3 * seed + 1, 2);
  fill_whole(call.in.v, 3 * seed + 2, 2);
}

HostTensor clone(const HostTensor& tensor) {
  HostTensor copy = make_tensor(tensor.dtype, tensor.shape);
  fill(copy, [&](const auto& at) { return tensor.at(at); });
  return copy;
}

// Expects two outputs within tolerance of one value, and lses that differ by lse_shift(at).
void expect_equal_values(const Call& a, const Call& b, double magnitude,
                         const std::function<double(const std::vector<int64_t>&)>& lse_shift) {
  const double allowed = 2 * tolerance(a.problem, magnitude);
  each_index(a.out.out.shape, [&](const auto& at) { EXPECT_NEAR(a.out.out.at(at), b.out.out.at(at), allowed); });
  each_index(a.out.lse.shape, [&](const auto& at) {
    const double wanted = a.out.lse.at(at) + lse_shift(at);
    EXPECT_NEAR(b.out.lse.at(at), wanted, 4 * lse_tolerance(wanted));
  });
}

double no_shift(const std::vector<int64_t>&) { return 0; }

}  // namespace

TEST_P(PropertyOn, AConstantBiasMovesOnlyLse) {
  for_each_storage([](const std::string& words) {
    const std::string line = words + " b1 h2 q7 k130 d16 bias=f32[1,1,1,1] lse";
    for (double constant : {-3.5, 12.0}) {
      Call plain = make(line), moved = make(line);
      fill_whole(plain);
      moved.in = plain.in;
      moved.in.bias = clone(plain.in.bias);
      fill(moved.in.bias, constant);
      expect_equal_values(run(plain), run(moved), 2, [&](const auto&) { return constant; });
    }
  });
}

TEST_P(PropertyOn, AVectorAddedToEveryKeyMovesOnlyLse) {
  for_each_storage([](const std::string& words) {
    const std::string line = words + " b1 h2 q7 k130 d16 scale=0.25 lse";
    Call plain = make(line), moved = make(line);
    fill_whole(plain);
    moved.in = plain.in;
    moved.in.k = clone(plain.in.k);
    fill(moved.in.k, [&](const auto& at) { return plain.in.k.at(at) + (at[3] == 2 ? 4 : at[3] == 9 ? -3 : 0); });
    expect_equal_values(run(plain), run(moved), 2, [&](const auto& at) {
      return 0.25 * (4 * plain.in.q.at({at[0], at[1], at[2], 2}) - 3 * plain.in.q.at({at[0], at[1], at[2], 9}));
    });
  });
}

TEST_P(PropertyOn, TheOrderOfKeysDoesNotMatter) {
  for_each_storage([](const std::string& words) {
    const int64_t keys = 211;
    const std::string line = words + " b1 h2 q5 k211 d16 lse";
    for (int64_t step : {keys - 1, int64_t{37}}) {  // reversed, and permuted by a step coprime to the count
      Call plain = make(line), mixed = make(line);
      fill_hash(plain);
      mixed.in = plain.in;
      mixed.in.k = clone(plain.in.k);
      mixed.in.v = clone(plain.in.v);
      for (auto [from, to] : {std::pair{&plain.in.k, &mixed.in.k}, std::pair{&plain.in.v, &mixed.in.v}})
        fill(*to, [&, source = from](const auto& at) {
          return source->at({at[0], at[1], at[2] * step % keys, at[3]});
        });
      expect_equal_values(run(plain), run(mixed), 1, no_shift);
    }
  });
}

TEST_P(PropertyOn, LinearInV) {
  for_each_storage([](const std::string& words) {
    const std::string line = words + " b1 h2 q5 k131 d16 lse";
    Call first = make(line), second = make(line), sum = make(line);
    fill_whole(first, 1);
    second.in = sum.in = first.in;
    second.in.v = clone(first.in.v);
    fill_whole(second.in.v, 77, 2);
    sum.in.v = clone(first.in.v);
    fill(sum.in.v, [&](const auto& at) { return 2 * first.in.v.at(at) - second.in.v.at(at); });
    run(first);
    run(second);
    run(sum);
    const double allowed = tolerance(sum.problem, 6) + 3 * tolerance(sum.problem, 2);
    each_index(sum.out.out.shape, [&](const auto& at) {
      EXPECT_NEAR(sum.out.out.at(at), 2 * first.out.out.at(at) - second.out.out.at(at), allowed);
    });
    expect_same_bits(sum.out.lse, first.out.lse);
  });
}

TEST_P(PropertyOn, ACausalPrefixKnowsNothingOfTheRest) {
  for_each_storage([](const std::string& words) {
    Call plain = make(words + " b1 h2 q150 k150 d16 causal lse"), changed = plain;
    fill_hash(plain);
    expect_oracle(run(plain));
    for (int64_t prefix : {1, 63, 64, 100, 149}) {
      SCOPED_TRACE(prefix);
      changed.in = plain.in;
      changed.in.k = clone(plain.in.k);
      changed.in.v = clone(plain.in.v);
      for (HostTensor* tensor : {&changed.in.k, &changed.in.v}) {
        HostTensor rest = slice(*tensor, 2, prefix, 150);
        fill(rest, nan);
      }
      run(changed);
      expect_same_bits(slice(changed.out.out, 2, 0, prefix), slice(plain.out.out, 2, 0, prefix));
      expect_same_bits(slice(changed.out.lse, 2, 0, prefix), slice(plain.out.lse, 2, 0, prefix));
      Call alone = make(words + " b1 h2 q" + std::to_string(prefix) + " d16 causal lse");
      alone.in.q = slice(plain.in.q, 2, 0, prefix);
      alone.in.k = slice(plain.in.k, 2, 0, prefix);
      alone.in.v = slice(plain.in.v, 2, 0, prefix);
      expect_oracle(run(alone));
    }
  });
}

namespace {

// Converts a HostTensor to the C++ API's Tensor.
Tensor tensor_of(const HostTensor& t) {
  if (!t.present()) return {};
  return Tensor(static_cast<void*>(t.data()), static_cast<Type>(t.dtype), t.shape, t.strides);
}

// Cuts the keys of `whole` at `cuts`, computes the partial states, and merges them into whole.out.
void merge_parts(Call& whole, const std::string& words, const std::string& options, const std::vector<int64_t>& cuts) {
  const int64_t queries = whole.problem.seqlen_q, keys = whole.problem.seqlen_k;
  std::vector<Call> calls;
  for (size_t n = 0; n + 1 < cuts.size(); ++n) {
    Call part = make(
        words + " out=f32 b1 h4:2 q" + std::to_string(queries) + " k" + std::to_string(cuts[n + 1] - cuts[n]) +
        " d16 partial lse q_start=" + std::to_string(keys - queries) + " k_start=" + std::to_string(cuts[n]) + options);
    part.in.q = whole.in.q;
    part.in.k = slice(whole.in.k, 2, cuts[n], cuts[n + 1]);
    part.in.v = slice(whole.in.v, 2, cuts[n], cuts[n + 1]);
    part.in.alibi_slopes = whole.in.alibi_slopes;
    if (whole.in.bias.present()) part.in.bias = slice(whole.in.bias, 3, cuts[n], cuts[n + 1]);
    expect_oracle(run(part));
    calls.push_back(std::move(part));
  }
  std::vector<PartialState> parts;
  for (const Call& call : calls) parts.push_back({tensor_of(call.out.out), tensor_of(call.out.lse)});
  whole.out = check::make_outputs(whole.problem);
  merge(parts, tensor_of(whole.out.out), {.lse = tensor_of(whole.out.lse), .sinks = tensor_of(whole.in.sinks)});
  EXPECT_EQ(check::broken_canaries(whole.out.out), 0);
}

}  // namespace

TEST_P(PropertyOn, MergingAnySplitOfTheKeysIsTheWhole) {
  const std::vector<std::vector<int64_t>> cuts{
      {0, 200}, {0, 100, 200}, {0, 1, 2, 200}, {0, 0, 67, 67, 199, 200}, {0, 64, 96, 128, 160, 200}};
  for (const std::string& words : {std::string("q=f32 k=f32 v=f32"), std::string("q=f16 k=f16 v=f16"),
                                   std::string("q=bf16 k=bf16 v=bf16"), std::string("q=f16 k=e4m3 v=e4m3")})
    for (const std::string& options :
         {std::string(), std::string(" causal"), std::string(" causal window=70,0 softcap=5 alibi"),
          std::string(" bias=f32[b,h,q,k]")}) {
      SCOPED_TRACE(words + options);
      Call whole = make(words + " b1 h4:2 q9 k200 d16 lse sinks" + options);
      fill_hash(whole);
      fill_hash(whole.in.sinks, 4);
      if (whole.in.alibi_slopes.present())
        fill(whole.in.alibi_slopes, [](const auto& at) { return 0.01 * static_cast<double>(at[0]); });
      if (whole.in.bias.present()) fill_hash(whole.in.bias, 8);
      for (const std::vector<int64_t>& cut : cuts) {
        SCOPED_TRACE(testing::PrintToString(cut));
        merge_parts(whole, words, options, cut);
        expect_oracle(whole);
      }
    }
}

TEST(Property, EveryLengthOfKeysOnEveryIsa) {
  const std::vector<CpuIsa> isas = available_cpu_isas();
  std::vector<int64_t> lengths(640);
  std::iota(lengths.begin(), lengths.end(), 1);
  lengths.insert(lengths.end(), {1023, 1024, 1025});
  for_each_storage([&](const std::string& words) {
    Call longest = make(words + " b1 h2:1 q3 k1025 d24:20 lse");
    fill_hash(longest);
    for (int64_t length : lengths)
      for (const char* mask : {"", " causal"}) {
        if (quick() && length > 100 && length % 9 != 0 && length < 1023) continue;
        Call call;
        call.problem = parse_problem(words + " b1 h2:1 q3 k" + std::to_string(length) + " d24:20 lse" + mask);
        call.in.q = longest.in.q;
        call.in.k = slice(longest.in.k, 2, 0, length);
        call.in.v = slice(longest.in.v, 2, 0, length);
        const check::Reference reference = check::forward(call.problem, call.in);
        for_each_isa(isas, [&] { expect_oracle(run(call), reference); });
        if (testing::Test::HasFailure()) return;  // one failing length is enough
      }
  });
}

TEST_P(PropertyOn, TheThreadCountChangesNoBit) {
  for_each_storage([](const std::string& words) {
    for (const char* shape :
         {"b2 h4:2 q150 k150 d32 causal lse", "b1 h4:2 q1 k3000 d32 lse", "b1 h2 q3 k3000 d32 lse splits=7",
          "varlen=17:40,0:5,130:130,1:900 h4:2 d32 causal lse"}) {
      SCOPED_TRACE(shape);
      Call one = make(words + " " + shape);
      fill_hash(one);
      const Context single({.num_threads = 1});
      run(one, single.get());
      for (int32_t threads : {1, 2, 3, 5}) {
        const Context context({.num_threads = threads});
        Call several = one;
        for (int repeat = 0; repeat < 2; ++repeat) expect_same_bits(run(several, context.get()), one);
      }
    }
  });
}

TEST_P(PropertyOn, InvariantRowsDependOnNothingElse) {
  for_each_storage([](const std::string& words) {
    for (const char* mask : {"", " causal"}) {
      SCOPED_TRACE(mask);
      Call together = make(words + " b3 h4:2 q37 k300 d32 lse invariant" + mask);
      fill_hash(together);
      expect_oracle(run(together));
      for (const std::array<int64_t, 3>& row : {std::array<int64_t, 3>{0, 0, 0}, {1, 2, 17}, {2, 3, 36}}) {
        const auto [b, h, i] = row;
        const std::string start = *mask ? " q_start=" + std::to_string(263 + i) : "";  // off = 300 - 37, then query i
        Call alone = make(words + " b1 h1 q1 k300 d32 lse invariant" + mask + start);
        alone.in.q = slice(slice(slice(together.in.q, 0, b, b + 1), 1, h, h + 1), 2, i, i + 1);
        alone.in.k = slice(slice(together.in.k, 0, b, b + 1), 1, h / 2, h / 2 + 1);
        alone.in.v = slice(slice(together.in.v, 0, b, b + 1), 1, h / 2, h / 2 + 1);
        run(alone);
        expect_same_bits(alone.out.out, slice(slice(slice(together.out.out, 0, b, b + 1), 1, h, h + 1), 2, i, i + 1));
        EXPECT_EQ(alone.out.lse.at({0, 0, 0}), together.out.lse.at({b, h, i}));
      }
    }
  });
}

// The memory layout of a bias or mask must not change any bit. Broadcast dimensions, strided keys, reversed keys and
// rows at odd addresses are compared with the same elements in contiguous rows.
TEST_P(PropertyOn, HowABiasOrAMaskLiesChangesNoBit) {
  struct View {
    const char* name;
    std::vector<int64_t> strides;  // strides for a shape [2, 4, q, k]
    int keys_alike, rows_alike, heads_alike;
  };
  for (const int64_t q : {1, 3, 17, 70}) {
    if (quick() && q != 3 && q != 70) continue;  // few rows and many rows have different loops
    constexpr int64_t k = 209;
    const std::vector<View> views = {{"queries innermost", {4 * q * k, q * k, 1, q}, 0, 0, 0},
                                     {"odd rows", {4 * q * (k + 3), q * (k + 3), k + 3, 1}, 0, 0, 0},
                                     {"keys backwards", {4 * q * k, q * k, k, -1}, 0, 0, 0},
                                     {"batch innermost", {1, 2 * q * k, 2 * k, 2}, 0, 0, 0},
                                     {"keys alike", {4 * q, q, 1, 0}, 1, 0, 0},
                                     {"rows alike", {4 * k, k, 0, 1}, 0, 1, 0},
                                     {"rows and keys alike", {4, 1, 0, 0}, 1, 1, 0},
                                     {"heads alike", {q * k, 0, k, 1}, 0, 0, 1},
                                     {"key padding", {k, 0, 0, 1}, 0, 1, 1}};
    for (const char* kind : {"bias=f32", "bias=f16", "bias=bf16", "mask="}) {
      for (const View& view : views) {
        SCOPED_TRACE(std::string(kind) + " q" + std::to_string(q) + " " + view.name);
        Call whole = make("f32 b2 h4:2 q" + std::to_string(q) + " k209 d16 causal lse " + kind + "[b,h,q,k]");
        fill_hash(whole, 5);
        const bool is_mask = whole.problem.mask.present();
        HostTensor& elements = is_mask ? whole.in.mask : whole.in.bias;
        HostTensor random = make_tensor(DType::f32, elements.shape);
        fill_hash(random, 6);
        fill(elements, [&](const std::vector<int64_t>& at) {
          const double x = random.at(
              {at[0], view.heads_alike ? 0 : at[1], view.rows_alike ? 0 : at[2], view.keys_alike ? 0 : at[3]});
          return is_mask ? (x > -0.5 ? 1 : 0) : x < -0.9 ? -infinity : 4 * x;
        });
        Call other = whole;
        (is_mask ? other.in.mask : other.in.bias) = copy_with_strides(elements, view.strides);
        expect_same_bits(run(other), run(whole));
        if (&view == &views.front()) expect_oracle(whole);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, PropertyOn, testing::ValuesIn(available_cpu_isas()), isa_name);

}  // namespace rapt::test
