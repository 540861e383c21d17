// Reports R01..R17, R74..R80, R151..R163: empty rows, biases, causal offsets, windows, ALiBi, masks. The name of each
// test is the id of its report. reports.h describes each report.
#include <array>

#include "rapt/rapt.hpp"
#include "support.h"

namespace rapt::test {
TEST(Reports, R01) {
  for_each_type([](DType type) {
    Call call = make(type, "b1 h2 q6 k10 d8 scale=0.125 mask=[1,1,q,k] lse");
    fill_hash(call);
    fill(call.in.mask, [](const auto& at) { return at[2] < 5 && at[3] <= at[2] ? 1.0 : 0.0; });
    expect_oracle(run(call));
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t d = 0; d < 8; ++d) EXPECT_EQ(call.out.out.at({0, h, 0, d}), call.in.v.at({0, h, 0, d}));
      expect_empty_row(call, {0, h, 5});
    }
    expect_finite(call.out.out);
  });
}

TEST(Reports, R04) {
  for_each_type([](DType type) {
    Call none = make(type, "b1 h1 q2 k0 d8 lse");
    fill_hash(none);
    Call hidden = make(type, "b1 h1 q2 k5 d8 mask=[1,1,q,k] lse");
    fill_hash(hidden);
    fill(hidden.in.mask, 0);
    run(none);
    run(hidden);
    for (int64_t i = 0; i < 2; ++i) {
      expect_empty_row(none, {0, 0, i});
      expect_empty_row(hidden, {0, 0, i});
    }
  });
}

TEST(Reports, R06) {
  for_each_type([](DType type) {
    for (const char* line :
         {"b3 h1 q1 k64 d64 seqused=0,5,64 lse splits=4", "varlen=1:0,1:5,1:64 h1 d64 lse splits=4"}) {
      SCOPED_TRACE(line);
      Call call = make(type, line);
      fill_hash(call);
      fill(call.in.v, 1);
      expect_oracle(run(call));
      const bool packed = call.problem.varlen;
      expect_empty_row(call, packed ? std::vector<int64_t>{0, 0} : std::vector<int64_t>{0, 0, 0});
      for (int64_t b = 1; b < 3; ++b)
        expect_row(call, packed ? std::vector<int64_t>{b, 0} : std::vector<int64_t>{b, 0, 0},
                   std::vector<double>(64, 1.0));
    }
  });
  // Tests only the merge: of (0, -inf) with (0, -inf), and of (0, -inf) with (x, 1.25) in either order.
  const float minus_infinity = -std::numeric_limits<float>::infinity();
  const std::array<float, 4> zero{}, x{0.1f, -2.5f, 1e-30f, 3e30f};
  const auto merged = [](const float* out_a, float lse_a, const float* out_b, float lse_b) {
    std::array<float, 5> result;
    result.fill(std::numeric_limits<float>::quiet_NaN());
    const PartialState parts[] = {{Tensor(out_a, {1, 1, 1, 4}), Tensor(&lse_a, {1, 1, 1})},
                                  {Tensor(out_b, {1, 1, 1, 4}), Tensor(&lse_b, {1, 1, 1})}};
    merge(parts, Tensor(result.data(), {1, 1, 1, 4}), {.lse = Tensor(result.data() + 4, {1, 1, 1})});
    return result;
  };
  const std::array<float, 5> empty{0, 0, 0, 0, minus_infinity}, other{x[0], x[1], x[2], x[3], 1.25f};
  EXPECT_EQ(merged(zero.data(), minus_infinity, zero.data(), minus_infinity), empty);
  EXPECT_EQ(merged(zero.data(), minus_infinity, x.data(), 1.25f), other);
  EXPECT_EQ(merged(x.data(), 1.25f, zero.data(), minus_infinity), other);
}

TEST(Reports, R08) {
  Call call = make("f32 b1 h1 q640 k640 d4 bias=f32[1,1,q,k] lse");
  for (HostTensor* tensor : {&call.in.q, &call.in.k, &call.in.v}) fill(*tensor, 1);
  fill(call.in.bias, [](const auto& at) { return at[3] > at[2] || at[3] <= at[2] - 10 ? -infinity : 0.0; });
  run(call);
  for (int64_t i = 0; i < 640; ++i) {
    expect_row(call, {0, 0, i}, {1, 1, 1, 1});
    expect_lse(call, {0, 0, i}, 2 + std::log(static_cast<double>(std::min<int64_t>(i + 1, 10))));
  }
  EXPECT_NEAR(call.out.lse.at({0, 0, 639}), 4.302585, 2e-5);
}

TEST(Reports, R10) {
  Call call = make("bf16 b1 h1 q2 k4 d8 bias=bf16[1,1,q,k] lse");
  fill_index(call.in.v);
  const double lowest = bf16_to_float(0xff7f);
  const double rows[2][4] = {{-infinity, lowest, lowest, 0}, {-infinity, lowest, lowest, -infinity}};
  fill(call.in.bias, [&](const auto& at) { return rows[at[2]][at[3]]; });
  run(call);
  for (int64_t d = 0; d < 8; ++d) EXPECT_EQ(call.out.out.at({0, 0, 0, d}), call.in.v.at({0, 0, 3, d}));
  expect_row(call, {0, 0, 1}, {1, 1.5, 0, 0, 0, 0, 0, 0});
  expect_finite(call.out.out);
  expect_finite(call.out.lse);
}

TEST(Reports, R12) {
  Call call = make("f32 b1 h1 q441 k441 d64 bias=f32[1,1,q,k] lse");
  fill_hash(call);
  fill(call.in.bias, [](const auto& at) { return at[3] < 128 ? -double{std::numeric_limits<float>::max()} : 0.0; });
  run(call);
  Call rest = make("f32 b1 h1 q441 k313 d64 lse");
  rest.in.q = call.in.q;
  rest.in.k = slice(call.in.k, 2, 128, 441);
  rest.in.v = slice(call.in.v, 2, 128, 441);
  const Reference expected = oracle(rest);
  for (int64_t i = 0; i < 441; ++i) {
    const auto row = expected.out.begin() + i * 64;
    expect_row(call, {0, 0, i}, {row, row + 64});
    expect_lse(call, {0, 0, i}, expected.lse[static_cast<size_t>(i)]);
  }
  expect_finite(call.out.out);
}

TEST(Reports, R13) {
  for_each_type([](DType type) {
    Call top_left = make(type, "b1 h1 q1 k8 d8 causal_top_left lse");
    Call bottom_right = make(type, "b1 h1 q1 k8 d8 causal lse");
    fill_index(top_left.in.v);
    fill_index(bottom_right.in.v);
    expect_row(run(top_left), {0, 0, 0}, {1, 0, 0, 0, 0, 0, 0, 0});
    expect_lse(top_left, {0, 0, 0}, 0);
    expect_row(run(bottom_right), {0, 0, 0}, {1, 3.5, 0, 0, 0, 0, 0, 0});
    expect_lse(bottom_right, {0, 0, 0}, std::log(8.0));
  });
}

TEST(Reports, R15) {
  for_each_type([](DType type) {
    Call call = make(type, "b1 h1 q200 k70 d64 causal lse");
    fill_index(call.in.v);
    run(call);
    for (int64_t i = 0; i < 130; ++i) expect_empty_row(call, {0, 0, i});
    for (int64_t i = 130; i < 200; ++i) {
      std::vector<double> row(64, 0.0);
      row[0] = 1;
      row[1] = static_cast<double>(i - 130) / 2;
      expect_row(call, {0, 0, i}, row);
      expect_lse(call, {0, 0, i}, std::log(static_cast<double>(i - 129)));
    }
  });
}

TEST(Reports, R17) {
  for_each_type([](DType type) {
    Call full = make(type, "b1 h1 q96 k96 d64 causal lse");
    fill_hash(full);
    run(full);
    for (int64_t n : {1, 40, 63, 64, 65}) {
      Call chunk = make(type, "b1 h1 q" + std::to_string(n) + " k96 d64 causal lse");
      chunk.in = full.in;
      chunk.in.q = slice(full.in.q, 2, 96 - n, 96);
      expect_oracle(run(chunk));
      for (int64_t i = 0; i < n; ++i) {
        std::vector<double> row;
        for (int64_t d = 0; d < 64; ++d) row.push_back(full.out.out.at({0, 0, 96 - n + i, d}));
        expect_row(chunk, {0, 0, i}, row);
        expect_lse(chunk, {0, 0, i}, full.out.lse.at({0, 0, 96 - n + i}));
      }
    }
  });
}

TEST(Reports, R74) {
  for_each_type([](DType type) {
    Call call = make(type, "b1 h1 q10 k10 d8 causal window=4,0 lse");
    fill_index(call.in.v);
    run(call);
    expect_row(call, {0, 0, 9}, {1, 7, 0, 0, 0, 0, 0, 0});
    expect_lse(call, {0, 0, 9}, std::log(5.0));
    expect_lse(call, {0, 0, 3}, std::log(4.0));
  });
}

TEST(Reports, R76) {
  for_each_type([](DType type) {
    for (int64_t s : {200, 4096}) {
      const std::string shape = "b1 h1 q" + std::to_string(s) + " k" + std::to_string(s) + " d64 lse ";
      Call causal = make(type, shape + "causal");
      fill_hash(causal);
      run(causal);
      for (int64_t left : {int64_t{-1}, s - 1, s, int64_t{1000000000}, int64_t{2147483647}}) {
        SCOPED_TRACE("s " + std::to_string(s) + " left " + std::to_string(left));
        Call window = make(type, shape + "window=" + std::to_string(left) + ",0");
        window.in = causal.in;
        run(window);
        int64_t different = 0;
        const double allowed = tolerance(type, 1.0);
        each_index(window.out.out.shape, [&](const auto& at) {
          different += std::abs(window.out.out.at(at) - causal.out.out.at(at)) <= allowed ? 0 : 1;
        });
        EXPECT_EQ(different, 0) << "elements that differ from causal";
        for (int64_t i : {int64_t{0}, s / 2, s - 1}) expect_lse(window, {0, 0, i}, causal.out.lse.at({0, 0, i}));
      }
    }
  });
}

TEST(Reports, R78) {
  for_each_type([](DType type) {
    const std::string shape = "b1 h1 q130 k130 d64 lse ";
    Call own = make(type, shape + "window=0,0"), later = make(type, shape + "window=0,-1"),
         causal = make(type, shape + "window=-1,0");
    for (Call* call : {&own, &later, &causal}) {
      fill_hash(*call);
      expect_oracle(run(*call));
    }
    expect_same_bits(own.out.out, own.in.v);
    for (int64_t i = 0; i < 130; ++i) {
      double dot = 0;
      for (int64_t d = 0; d < 64; ++d) dot += own.in.q.at({0, 0, i, d}) * own.in.k.at({0, 0, i, d});
      expect_lse(own, {0, 0, i}, dot / 8);
    }
  });
}

TEST(Reports, R80) {
  for_each_type([](DType type) {
    for (const char* splits : {"", " splits=2", " splits=7", " page=16", " page=3 splits=2"}) {
      Call call = make(type, std::string("b1 h1 q1 k50 d8 window=3,0 lse") + splits);
      fill_index(call.in.v);
      expect_row(run(call), {0, 0, 0}, {1, 47.5, 0, 0, 0, 0, 0, 0});
      expect_lse(call, {0, 0, 0}, std::log(4.0));
    }
  });
}

TEST(Reports, R151) {
  const double ln2 = std::log(2.0);
  const auto check_head = [](const Call& call, int64_t b, int64_t h, bool sloped) {
    const double fifteenth = 1.0 / 15;
    if (sloped) {
      expect_row(call, {b, h, 3}, {fifteenth, 2 * fifteenth, 4 * fifteenth, 8 * fifteenth});
      expect_lse(call, {b, h, 3}, std::log(15.0 / 8));
    } else {
      expect_row(call, {b, h, 3}, {0.25, 0.25, 0.25, 0.25});
      expect_lse(call, {b, h, 3}, std::log(4.0));
    }
  };
  for_each_type([&](DType type) {
    Call shared = make(type, "b2 h2 q4 k4 d4 causal alibi lse");
    fill_identity(shared.in.v);
    put(shared.in.alibi_slopes, {0}, ln2);
    run(shared);
    Call own = make(type, "b2 h2 q4 k4 d4 causal alibi lse");
    own.problem.alibi_per_batch = true;
    fill_identity(own.in.v);
    own.in.alibi_slopes = make_tensor(DType::f32, {2, 2});
    fill(own.in.alibi_slopes, [&](const auto& at) { return at[0] == at[1] ? ln2 : 0.0; });
    run(own);
    for (int64_t b = 0; b < 2; ++b)
      for (int64_t h = 0; h < 2; ++h) {
        check_head(shared, b, h, h == 0);
        check_head(own, b, h, b == h);
      }
    EXPECT_NEAR(own.out.lse.at({0, 0, 3}), 0.628609, 2e-6);
  });
}

namespace {

// The value at a four-dimensional index, for a tensor that is broadcast right-aligned.
double broadcast_at(const HostTensor& tensor, const std::vector<int64_t>& at) {
  std::vector<int64_t> own(tensor.shape.size());
  for (size_t d = 0; d < own.size(); ++d) own[d] = tensor.shape[d] == 1 ? 0 : at[at.size() - own.size() + d];
  return tensor.at(own);
}

// Compares the results for two forms of one mask: the given form, and the expanded form.
void expect_broadcast_is_written_out(DType type, HostTensor given, bool boolean) {
  const std::string line = boolean ? "b2 h4 q7 k5 d16 lse mask=[b,h,q,k]" : "b2 h4 q7 k5 d16 lse bias=f32[b,h,q,k]";
  Call full = make(type, line), short_form = make(type, line);
  fill_hash(full);
  short_form.in = full.in;
  fill(boolean ? full.in.mask : full.in.bias, [&](const auto& at) { return broadcast_at(given, at); });
  (boolean ? short_form.in.mask : short_form.in.bias) = given;
  run(full);
  run(short_form);
  expect_oracle(full);
  expect_same_bits(full, short_form);
}

}  // namespace

TEST(Reports, R154) {
  const std::vector<std::vector<int64_t>> shapes{{5}, {7, 5}, {1, 1, 1, 5}, {2, 1, 1, 5}, {1, 4, 7, 1}, {2, 4, 7, 5}};
  for_each_type([&](DType type) {
    for (const auto& shape : shapes)
      for (bool boolean : {true, false}) {
        SCOPED_TRACE(testing::PrintToString(shape) + (boolean ? " mask" : " bias"));
        HostTensor given = make_tensor(boolean ? DType::u8 : DType::f32, shape);
        int64_t n = 0;
        fill(given, [&](const auto&) {
          return boolean ? static_cast<double>(n++ % 3 != 1) : std::sin(static_cast<double>(n++));
        });
        expect_broadcast_is_written_out(type, given, boolean);
        for (size_t d = 0; d < shape.size(); ++d) {  // the same mask, expanded with strides of 0
          if (shape[d] != 1) continue;
          const std::vector<int64_t> full_shape{2, 4, 7, 5};
          given.shape[d] = full_shape[4 - shape.size() + d];
          given.strides[d] = 0;
        }
        expect_broadcast_is_written_out(type, given, boolean);
      }
    for (bool boolean : {true, false}) {
      Call wrong = make(type, boolean ? "b2 h4 q7 k5 d16 mask=[b,h,q,k]" : "b2 h4 q7 k5 d16 bias=f32[b,h,q,k]");
      (boolean ? wrong.in.mask : wrong.in.bias) = make_tensor(boolean ? DType::u8 : DType::f32, {2, 7, 5});
      try_run(wrong);
      EXPECT_EQ(wrong.status, RAPT_ERROR_INVALID_ARGUMENT);
      EXPECT_NE(wrong.message.find(boolean ? "mask" : "bias"), std::string::npos) << wrong.message;
      EXPECT_NE(wrong.message.find("2"), std::string::npos) << wrong.message;
      EXPECT_NE(wrong.message.find("4"), std::string::npos) << wrong.message;
    }
  });
}

TEST(Reports, R156) {
  for_each_type([](DType type) {
    Call call = make(type, "b2 h2 q50 k12 d64 mask=[b,1,1,k] lse");
    fill_index(call.in.v);
    fill(call.in.mask, [](const auto& at) { return at[3] < (at[0] == 0 ? 12 : 5) ? 1.0 : 0.0; });
    run(call);
    each_index({2, 2, 50}, [&](const auto& row) {
      EXPECT_NEAR(call.out.out.at({row[0], row[1], row[2], 0}), 1.0, tolerance(type, 1));
      const double mean = row[0] == 0 ? 5.5 : 2.0;
      EXPECT_NEAR(call.out.out.at({row[0], row[1], row[2], 1}), mean, tolerance(type, mean));
    });
  });
}

TEST(Reports, R158) {
  for_each_type([](DType type) {
    Call call = make(type, "b1 h1 q2 k3 d4 mask=[1,1,q,k]");
    fill_identity(call.in.v);
    fill(call.in.mask, [](const auto& at) { return at[3] == 2 * at[2] ? 1.0 : 0.0; });
    run(call);
    expect_row(call, {0, 0, 0}, {1, 0, 0, 0});
    expect_row(call, {0, 0, 1}, {0, 0, 1, 0});
  });
}

TEST(Reports, R160) {
  const auto corner = [](const std::vector<int64_t>& at) { return at[2] < 4 && at[3] < 4 ? 1.0 : 0.0; };
  for_each_type([&](DType type) {
    Call added = make(type, "b1 h1 q8 k8 d8 bias=f32[1,1,q,k] lse"),
         kept = make(type, "b1 h1 q8 k8 d8 mask=[1,1,q,k] lse");
    fill(added.in.bias, corner);
    fill(kept.in.mask, corner);
    fill_index(added.in.v);
    fill_index(kept.in.v);
    run(added);
    run(kept);
    const double e = std::exp(1.0), mean = (6 * e + 22) / (4 * e + 4);
    EXPECT_NEAR(mean, 2.575766, 1e-6);
    for (int64_t i = 0; i < 8; ++i) {
      EXPECT_NEAR(added.out.out.at({0, 0, i, 1}), i < 4 ? mean : 3.5, tolerance(type, 3.5)) << i;
      if (i < 4)
        expect_row(kept, {0, 0, i}, {1, 1.5, 0, 0, 0, 0, 0, 0});
      else
        expect_empty_row(kept, {0, 0, i});
    }
  });
}

TEST(Reports, R161) {
  for_each_type([](DType type) {
    Call call = make(type, "b1 h1 q3 k3 d4 causal mask=[1,1,q,k] lse");
    fill_identity(call.in.v);
    fill(call.in.mask, [](const auto& at) { return at[3] == 0 ? 0.0 : 1.0; });
    run(call);
    expect_empty_row(call, {0, 0, 0});
    expect_row(call, {0, 0, 1}, {0, 1, 0, 0});
    expect_row(call, {0, 0, 2}, {0, 0.5, 0.5, 0});
  });
}

TEST(Reports, R163) {
  for_each_type(
      [](DType type) {
        Call wide = make(type, "b1 h1 q32 k32 d64 bias=f32[1,1,q,k] lse");
        Call same = make(type, std::string("b1 h1 q32 k32 d64 lse bias=") + name_of(type) + "[1,1,q,k]");
        fill_hash(wide);
        fill_hash(same);
        const auto causal = [](const std::vector<int64_t>& at) { return at[3] > at[2] ? -infinity : 0.0; };
        fill(wide.in.bias, causal);
        fill(same.in.bias, causal);
        expect_oracle(run(wide));
        expect_oracle(run(same));
        expect_same_bits(wide, same);
      },
      {DType::f16, DType::bf16});
}

}  // namespace rapt::test
