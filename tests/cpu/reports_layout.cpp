// Reports R35..R58 and R73, R180: ragged lengths, head dimensions, strides, alignment, head mapping. reports.h
// describes each report.
#include <array>

#include "rapt/rapt.hpp"
#include "support.h"

namespace rapt::test {
namespace {

std::string squares(int64_t s) { return "q" + std::to_string(s) + " k" + std::to_string(s); }

// A tensor with the same elements, whose address is shifted by `elements` elements from an aligned address.
HostTensor shifted(const HostTensor& tensor, int64_t elements) {
  HostTensor buffer = make_tensor(tensor.dtype, {tensor.size() + elements});
  HostTensor moved = tensor;
  moved.storage = buffer.storage;
  moved.offset = elements;
  const auto bytes = static_cast<size_t>(tensor.size() * bytes_of(tensor.dtype));
  std::memcpy(moved.data(), tensor.data(), bytes);
  return moved;
}

}  // namespace

TEST(Reports, R35) {
  for_each_type(
      [](DType type) {
        for (int64_t s : {1, 2, 31, 33, 63, 64, 65, 127, 128, 129, 137, 255, 257}) {
          Call call = make(type, "b1 h2 d64 causal lse " + squares(s));
          fill_hash(call, static_cast<uint64_t>(s));
          expect_oracle(run(call));
        }
      },
      {DType::bf16, DType::f16});
}

TEST(Reports, R37) {
  for_each_type([](DType type) {
    for (int64_t keys : {65, 63, 64, 129}) {
      Call call = make(type, "b1 h1 q1 k" + std::to_string(keys) + " d64 softcap=1 lse");
      fill(call.in.v, 1);
      expect_row(run(call), {0, 0, 0}, std::vector<double>(64, 1.0));
      expect_lse(call, {0, 0, 0}, std::log(static_cast<double>(keys)));
    }
  });
}

TEST(Reports, R41) {
  for_each_type([](DType type) {
    Call call = make(type, "b1 h1 q4 k4 d128 scale=1 lse");
    const auto diagonal = [](double value) {
      return [value](const std::vector<int64_t>& at) { return at[3] == 64 + at[2] ? value : 0.0; };
    };
    fill(call.in.q, diagonal(20));
    fill(call.in.k, diagonal(1));
    fill(call.in.v, diagonal(1));
    run(call);
    each_index({4, 128}, [&](const auto& at) {
      EXPECT_NEAR(call.out.out.at({0, 0, at[0], at[1]}), at[1] == 64 + at[0] ? 1.0 : 0.0, 1e-6 + tolerance(type, 1e-7));
    });
    for (int64_t i = 0; i < 4; ++i) expect_lse(call, {0, 0, i}, 20 + std::log1p(3 * std::exp(-20.0)));
  });
}

TEST(Reports, R43) {
  Call call = make("bf16 b1 h128:8 q1 k40 d512 lse");
  fill_hash(call);
  expect_oracle(run(call));
}

TEST(Reports, R45) {
  for_each_type([](DType type) {
    Call call = make(type, "b1 h8 q4 k4 d32:64 lse");
    fill_hash(call);
    expect_oracle(run(call));
    EXPECT_EQ(call.out.out.shape, (std::vector<int64_t>{1, 8, 4, 64}));
    Call explicit_scale = make(type, "b1 h8 q4 k4 d32:64 lse scale=0.17677669");  // 1/sqrt(32)
    explicit_scale.in = call.in;
    expect_same_bits(run(explicit_scale), call);
  });
}

TEST(Reports, R47) {
  for_each_type([](DType type) {
    Call expanded = make(type, "b1 h16 q1 k16 d128 mask=[1,1,1,k] lse"),
         copied = make(type, "b1 h16 q1 k16 d128 mask=[1,1,1,k] lse");
    fill_hash(expanded);
    for (HostTensor* tensor : {&expanded.in.k, &expanded.in.v}) tensor->strides[1] = 0;
    copied.in.q = expanded.in.q;
    copied.in.k = copy_with_strides(expanded.in.k, copied.in.k.strides);
    copied.in.v = copy_with_strides(expanded.in.v, copied.in.v.strides);
    expect_oracle(run(copied));
    expect_same_bits(run(expanded), copied);
  });
}

TEST(Reports, R49) {
  for_each_type([](DType type) {
    Call fused = make(type, "b1 h16:1 q40 k40 d64 causal lse"), copied = make(type, "b1 h16:1 q40 k40 d64 causal lse");
    HostTensor buffer = make_tensor(type, {40, 1, 18, 64});  // [s, b, h, d]
    fill_hash(buffer, 5);
    HostTensor bhsd = buffer;
    bhsd.shape = {1, 18, 40, 64};
    bhsd.strides = {buffer.strides[1], buffer.strides[2], buffer.strides[0], 1};
    fused.in.q = slice(bhsd, 1, 0, 16);
    fused.in.k = slice(bhsd, 1, 16, 17);
    fused.in.v = slice(bhsd, 1, 17, 18);
    copied.in.q = copy_with_strides(fused.in.q, copied.in.q.strides);
    copied.in.k = copy_with_strides(fused.in.k, copied.in.k.strides);
    copied.in.v = copy_with_strides(fused.in.v, copied.in.v.strides);
    expect_oracle(run(copied));
    run(fused);
    expect_oracle(fused);
    each_index(fused.out.out.shape,
               [&](const auto& at) { EXPECT_NEAR(fused.out.out.at(at), copied.out.out.at(at), tolerance(type, 1)); });
  });
}

TEST(Reports, R51) {
  for_each_type([](DType type) {
    const std::string line = "b1 h2 q33 k33 d16 mask=[1,h,q,k] lse";
    Call plain = make(type, line);
    fill_hash(plain);
    fill(plain.in.mask, [](const auto& at) { return (at[2] + at[3] + at[1]) % 3 == 0 ? 0.0 : 1.0; });
    expect_oracle(run(plain));
    const std::vector<int64_t> every_second{2 * 33 * 32, 33 * 32, 32, 2};
    for (int which = 0; which < 4; ++which) {
      SCOPED_TRACE("tensor " + std::to_string(which) + " of q, k, v, mask");
      Call strided = make(type, line);
      strided.in = plain.in;
      HostTensor& tensor =
          *std::array{&strided.in.q, &strided.in.k, &strided.in.v, &strided.in.mask}[static_cast<size_t>(which)];
      tensor = copy_with_strides(tensor, which == 3 ? std::vector<int64_t>{0, 33 * 66, 66, 2} : every_second);
      expect_oracle(run(strided));
    }
    Call constant_rows = make(type, line);  // the mask's last stride is 0, so a row keeps all keys or none
    constant_rows.in = plain.in;
    constant_rows.in.mask.strides = {0, 33 * 33, 33, 0};
    expect_oracle(run(constant_rows));
  });
}

TEST(Reports, R53) {
  for_each_type([](DType type) {
    Call plain = make(type, "b2 h1 q64 k64 d64 lse");
    fill_hash(plain);
    expect_oracle(run(plain));
    for (int64_t stride : {int64_t{1}, int64_t{7}, int64_t{1} << 40}) {
      Call odd = make(type, "b2 h1 q64 k64 d64 lse");
      odd.in = plain.in;
      odd.in.k.strides[1] = odd.in.v.strides[1] = stride;
      expect_same_bits(run(odd), plain);
    }
  });
}

TEST(Reports, R55) {
  for_each_type([](DType type) {
    Call heads_first = make(type, "b2 h4 q33 k33 d64 lse"),
         tokens_first = make(type, "b2 h4 q33 k33 d64 lse layout=bshd");
    Call gaps = make(type, "b2 h4 q33 k33 d64 lse");
    gaps.problem.out_strides = {{33 * 4 * 160, 160, 4 * 160, 2}};  // the order is tokens first; there are gaps
    fill_hash(heads_first);
    tokens_first.in = heads_first.in;
    gaps.in = heads_first.in;
    for (HostTensor* tensor : {&tokens_first.in.q, &tokens_first.in.k, &tokens_first.in.v})
      *tensor = copy_with_strides(*tensor, {33 * 4 * 64, 64, 4 * 64, 1});
    expect_oracle(run(heads_first));
    expect_oracle(run(tokens_first));
    EXPECT_EQ(tokens_first.out.out.strides, (std::vector<int64_t>{33 * 4 * 64, 64, 4 * 64, 1}));
    expect_oracle(run(gaps));
    expect_same_bits(gaps, heads_first);
  });
}

TEST(Reports, R56) {
  for (DType type : {DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e5m2}) {
    const std::string line = std::string("b1 h1 q64 k64 d64 lse") + (is_fp8(type) ? " out=f32" : "");
    Call aligned = make(type, line);
    fill_hash(aligned);
    expect_oracle(run(aligned));
    for (int64_t elements = 1; elements < 16 / bytes_of(type); ++elements) {
      SCOPED_TRACE(std::string(name_of(type)) + " +" + std::to_string(elements));
      Call moved = make(type, line);
      moved.in.q = shifted(aligned.in.q, elements);
      moved.in.k = shifted(aligned.in.k, elements);
      moved.in.v = shifted(aligned.in.v, elements);
      expect_oracle(run(moved));
    }
  }
}

TEST(Reports, R58) {
  for_each_type([](DType type) {
    for (int64_t keys : {361, 364, 368})
      for (bool boolean : {true, false}) {
        const std::string mask = boolean ? "mask=[1,1,q,k]" : std::string("bias=") + name_of(type) + "[1,1,q,k]";
        Call call = make(type, "b1 h2 q5 k" + std::to_string(keys) + " d64 lse " + mask);
        fill_hash(call);
        const double hidden = boolean ? 0.0 : -infinity, kept = boolean ? 1.0 : 0.0;
        fill(boolean ? call.in.mask : call.in.bias,
             [&](const auto& at) { return (at[2] + at[3]) % 7 == 0 ? hidden : kept; });
        expect_oracle(run(call));
      }
  });
}

TEST(Reports, R73) {
  for_each_type([](DType type) {
    for (const auto& [heads_q, heads_k] : std::vector<std::pair<int64_t, int64_t>>{{12, 12}, {32, 8}, {28, 4}, {8, 1}})
      for (int64_t queries : {5, 1}) {
        const std::string heads = "h" + std::to_string(heads_q) + ":" + std::to_string(heads_k);
        Call call = make(type, "b1 " + heads + " q" + std::to_string(queries) + " k5 d64");
        fill(call.in.v, [](const auto& at) { return static_cast<double>(at[1] + 1); });
        run(call);
        for (int64_t h = 0; h < heads_q; ++h)
          for (int64_t i = 0; i < queries; ++i)
            expect_row(call, {0, h, i}, std::vector<double>(64, static_cast<double>(h * heads_k / heads_q + 1)));
      }
  });
}

TEST(Reports, R180) {
  for_each_type([](DType type) {
    const std::string line = "b1 h2 q16 k48 d32 lse";
    Call plain = make(type, line), sparse_k = make(type, line), other_out = make(type, line + " layout=bshd");
    fill_hash(plain);
    sparse_k.in = plain.in;
    sparse_k.in.k = copy_with_strides(plain.in.k, {2 * 96 * 32, 96 * 32, 64, 1});
    other_out.in = plain.in;
    for (Call* call : {&plain, &sparse_k, &other_out, &plain})
      expect_oracle(run(*call));  // the calls run one after another in one context
    expect_same_bits(other_out, plain);
  });
}

}  // namespace rapt::test
