// Reports R82..R96 and R143..R147: soft cap, large logits, scale, NaN and Inf, accuracy, base of lse. reports.h
// describes each report.
#include <array>

#include "check/check.h"
#include "support.h"

namespace rapt::test {

TEST(Reports, R82) {
  for_each_type(
      [](DType type) {
        Call call = make(type, "b1 h1 q1 k3 d4 scale=1 softcap=50 lse");
        const double logits[] = {5000, 10000, -10000};
        put(call.in.q, {0, 0, 0, 0}, 100);
        for (int64_t j = 0; j < 3; ++j) put(call.in.k, {0, 0, j, 0}, logits[j] / 100);
        fill_identity(call.in.v);
        expect_row(run(call), {0, 0, 0}, {0.5, 0.5, 0, 0});
        expect_lse(call, {0, 0, 0}, 50 + std::log(2.0));
      },
      {DType::f32, DType::bf16});
}

TEST(Reports, R85) {
  for (const char* line : {"bf16 b1 h16:1 q1 k64 d128 lse", "bf16 b1 h16:1 q1 k1 d128 lse",
                           "bf16 varlen=1:64 h16:1 d128 lse", "bf16 b1 h16:1 q1 k64 d128 lse splits=4",
                           "bf16 b1 h16:1 q9 k64 d128 lse", "bf16 b1 h16:1 q1 k64 d128 page=16 lse"}) {
    SCOPED_TRACE(line);
    Call call = make(line);
    const bool packed = call.problem.varlen;
    fill(call.in.q, 1);
    fill(call.in.k, [&](const auto& at) { return at[packed ? 0 : 2] == 0 ? -512.0 : -640.0; });
    fill_hash(call.in.v, 3);
    run(call);
    const int64_t queries = packed ? 1 : call.problem.seqlen_q;
    each_index({16, queries, 128}, [&](const auto& at) {
      const double out = packed ? call.out.out.at({0, at[0], at[2]}) : call.out.out.at({0, at[0], at[1], at[2]});
      EXPECT_EQ(out, packed ? call.in.v.at({0, 0, at[2]}) : call.in.v.at({0, 0, 0, at[2]}));
    });
    for (int64_t h = 0; h < 16; ++h)
      expect_lse(call, packed ? std::vector<int64_t>{h, 0} : std::vector<int64_t>{0, h, 0}, -512 * std::sqrt(128.0));
  }
}

TEST(Reports, R87) {
  for (int64_t keys : {1, 2}) {
    Call call = make("bf16 b1 h1 q1 k" + std::to_string(keys) + " d64 lse");
    for (HostTensor* tensor : {&call.in.q, &call.in.k, &call.in.v}) fill(*tensor, 133120);
    run(call);
    for (int64_t d = 0; d < 64; ++d) EXPECT_EQ(call.out.out.at({0, 0, 0, d}), 133120.0);
    expect_lse(call, {0, 0, 0}, 133120.0 * 133120.0 * 8 + std::log(static_cast<double>(keys)));
  }
}

TEST(Reports, R89) {
  for_each_type([](DType type) {
    for (int64_t keys : {64, 192, 704})
      for (const char* bias : {"", " bias=f32[1,1,q,k]"}) {
        Call call = make(type, "b1 h1 q5 k" + std::to_string(keys) + " d64 scale=1 lse" + bias);
        fill(call.in.q, [](const auto& at) { return at[3] == 0 ? -100.0 : 0.0; });
        fill(call.in.k, [](const auto& at) { return at[3] == 0 ? 1.0 : 0.0; });
        fill(call.in.v, 1);
        run(call);
        for (int64_t i = 0; i < 5; ++i) {
          expect_row(call, {0, 0, i}, std::vector<double>(64, 1.0));
          expect_lse(call, {0, 0, i}, -100 + std::log(static_cast<double>(keys)));
        }
      }
  });
}

TEST(Reports, R90) {
  for_each_type([](DType type) {
    Call unset = make(type, "b1 h1 q5 k5 d16 lse"), quarter = make(type, "b1 h1 q5 k5 d16 lse scale=0.25");
    Call zero = make(type, "b1 h1 q5 k5 d16 lse scale=0"), minus_zero = make(type, "b1 h1 q5 k5 d16 lse scale=0");
    minus_zero.problem.scale = -0.0f;
    for (Call* call : {&unset, &quarter, &zero, &minus_zero}) {
      fill_hash(*call);
      expect_oracle(run(*call));
    }
    expect_same_bits(unset, quarter);
    for (const Call* call : {&zero, &minus_zero})
      for (int64_t i = 0; i < 5; ++i) {
        std::vector<double> mean(16, 0.0);
        for (int64_t j = 0; j < 5; ++j)
          for (int64_t d = 0; d < 16; ++d) mean[static_cast<size_t>(d)] += call->in.v.at({0, 0, j, d}) / 5;
        expect_row(*call, {0, 0, i}, mean);
        expect_lse(*call, {0, 0, i}, std::log(5.0));
      }
  });
}

TEST(Reports, R92) {
  for_each_type([](DType type) {
    for (const char* scale : {"0", "-1"}) {
      Call call = make(type, std::string("b1 h1 q3 k3 d4 causal lse scale=") + scale);
      fill_hash(call);
      fill_identity(call.in.v);
      expect_oracle(run(call));
      for (int64_t i = 0; i < 3; ++i)
        for (int64_t j = i + 1; j < 3; ++j) EXPECT_EQ(call.out.out.at({0, 0, i, j}), 0.0) << i << ", " << j;
      if (*scale != '0') continue;
      for (int64_t i = 0; i < 3; ++i) {
        const double weight = 1.0 / static_cast<double>(i + 1);
        expect_row(call, {0, 0, i}, {weight, i > 0 ? weight : 0, i > 1 ? weight : 0, 0});
      }
    }
  });
}

TEST(Reports, R94) {
  const auto counting = [](const std::vector<int64_t>& at) { return static_cast<double>(at[2] * 4 + at[3]); };
  for (int variant = 0; variant < 4; ++variant) {
    SCOPED_TRACE("variant " + std::to_string(variant) + " of plain, NaN key, NaN value, Inf value");
    Call call = make("f32 b1 h1 q2 k2 d4 mask=[1,1,q,k] lse");
    for (HostTensor* tensor : {&call.in.q, &call.in.k, &call.in.v}) fill(*tensor, counting);
    fill(call.in.mask, [](const auto& at) { return at[3] == 0 ? 1.0 : 0.0; });
    if (variant == 1) put(call.in.k, {0, 0, 1, 0}, nan);
    for (int64_t d = 0; d < 4 && variant > 1; ++d) put(call.in.v, {0, 0, 1, d}, variant == 2 ? nan : infinity);
    run(call);
    each_index({2, 4}, [&](const auto& at) {
      EXPECT_EQ(call.out.out.at({0, 0, at[0], at[1]}), call.in.v.at({0, 0, 0, at[1]}));
    });
  }
}

TEST(Reports, R96) {
  const std::string line = "f32 b2 h4 q16 k16 d8 causal lse";
  const auto expect_nan_rows = [](const Call& call,
                                  const std::function<bool(int64_t b, int64_t h, int64_t i)>& affected) {
    each_index(call.out.out.shape, [&](const auto& at) {
      EXPECT_EQ(std::isnan(call.out.out.at(at)), affected(at[0], at[1], at[2])) << testing::PrintToString(at);
    });
    each_index(call.out.lse.shape, [&](const auto& at) {
      EXPECT_EQ(std::isnan(call.out.lse.at(at)), affected(at[0], at[1], at[2])) << testing::PrintToString(at);
    });
  };
  Call all = make(line), one = make(line), key = make(line);
  for (Call* call : {&all, &one, &key}) fill_hash(*call);
  fill(all.in.q, nan);
  expect_nan_rows(run(all), [](int64_t, int64_t, int64_t) { return true; });
  for (int64_t d = 0; d < 8; ++d) put(one.in.q, {0, 0, 3, d}, nan);
  expect_nan_rows(run(one), [](int64_t b, int64_t h, int64_t i) { return b == 0 && h == 0 && i == 3; });
  fill(key.in.k, [&](const auto& at) { return at[2] == 5 ? nan : one.in.k.at(at); });
  expect_nan_rows(run(key), [](int64_t, int64_t, int64_t i) { return i >= 5; });
}

TEST(Reports, R143) {
  std::array<double, 2> rms{};
  for (DType type : {DType::f16, DType::bf16}) {
    SCOPED_TRACE(name_of(type));
    Call call = make(type, "b2 h2 q256 k256 d64 lse");
    fill_hash(call);
    run(call);
    const check::Result result = check::judge(call.problem, check::Fill::normal, call.in, call.out);
    EXPECT_TRUE(result.pass) << result.message;
    rms[type == DType::bf16] = result.out.rel_rms;
  }
  EXPECT_NEAR(rms[1] / rms[0], 8.0, 3.0);  // three bits fewer
}

TEST(Reports, R145) {
  constexpr std::array<std::pair<int64_t, int64_t>, 4> blocks{{{0, 128}, {128, 256}, {256, 384}, {543, 600}}};
  const auto block_of = [&](int64_t i) {
    for (size_t n = 0; n < blocks.size(); ++n)
      if (i >= blocks[n].first && i < blocks[n].second) return static_cast<int>(n);
    return -1;
  };
  Call call = make("bf16 b1 h2 q600 k600 d80 mask=[1,1,q,k] lse");
  fill_hash(call);
  fill(call.in.mask,
       [&](const auto& at) { return block_of(at[2]) >= 0 && block_of(at[2]) == block_of(at[3]) ? 1.0 : 0.0; });
  expect_oracle(run(call));
  for (const auto& [begin, end] : blocks) {
    Call own = make("bf16 b1 h2 q" + std::to_string(end - begin) + " d80 lse");
    own.in.q = slice(call.in.q, 2, begin, end);
    own.in.k = slice(call.in.k, 2, begin, end);
    own.in.v = slice(call.in.v, 2, begin, end);
    run(own);
    each_index(own.out.out.shape, [&, first = begin](const auto& at) {
      EXPECT_NEAR(call.out.out.at({0, at[1], first + at[2], at[3]}), own.out.out.at(at), 2 * tolerance(DType::bf16, 1));
    });
  }
  for (int64_t i = 384; i < 543; ++i)
    for (int64_t h = 0; h < 2; ++h) expect_empty_row(call, {0, h, i});
}

TEST(Reports, R147) {
  for_each_type([](DType type) {
    Call call = make(type, "b1 h1 q3 k16 d64 lse");
    fill_hash(call);
    fill(call.in.k, 0);
    run(call);
    for (int64_t i = 0; i < 3; ++i) expect_lse(call, {0, 0, i}, std::log(16.0));
  });
}

}  // namespace rapt::test
