// Reports R20..R33, R111, R112, R123, R149 (packed sequences and their metadata), R60..R69 (offsets and counts above
// 16, 31 and 32 bits), R107, R109 (splits, repeats) and R116..R121 (pages). reports.h describes each report.
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <deque>
#include <thread>

#include "check/poison.h"
#include "rapt/rapt.hpp"
#include "support.h"

namespace rapt::test {
namespace {

void expect_refused(const Call& call, const std::vector<std::string>& words) {
  EXPECT_EQ(call.status, RAPT_ERROR_INVALID_ARGUMENT) << call.message;
  for (const std::string& word : words)
    EXPECT_NE(call.message.find(word), std::string::npos) << "'" << word << "' is not in: " << call.message;
  each_index(call.out.out.shape, [&](const auto& at) { EXPECT_TRUE(std::isnan(call.out.out.at(at))); });
}

// Pages of zeros, which use memory only after they are touched.
HostTensor map_lazily(DType type, const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
  const check::Span span = check::reach(shape, strides);
  const auto bytes = static_cast<size_t>((span.last + 1) * bytes_of(type));
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    throw std::runtime_error("mmap of " + std::to_string(bytes) + " bytes: " + std::strerror(errno));
  HostTensor tensor;
  tensor.dtype = type;
  tensor.shape = shape;
  tensor.strides = strides;
  tensor.storage = {static_cast<std::byte*>(memory), [bytes](std::byte* p) { munmap(p, bytes); }};
  return tensor;
}

}  // namespace

TEST(Reports, R20) {
  Call call = make("bf16 varlen=1:3,0:0,1:5 h9:3 d64 causal scale=1 lse");
  fill_hash(call);
  expect_oracle(run(call));
  ASSERT_EQ(call.out.out.shape[0], 2);
  for (int64_t i = 0; i < 2; ++i) {  // each row is a full call with its own keys
    Call alone = make("bf16 b1 h9:3 q1 k" + std::to_string(i == 0 ? 3 : 5) + " d64 scale=1 lse");
    fill(alone.in.q, [&](const auto& at) { return call.in.q.at({i, at[1], at[3]}); });
    fill(alone.in.k, [&](const auto& at) { return call.in.k.at({3 * i + at[2], at[1], at[3]}); });
    fill(alone.in.v, [&](const auto& at) { return call.in.v.at({3 * i + at[2], at[1], at[3]}); });
    run(alone);
    each_index({9, 64}, [&](const auto& at) {
      EXPECT_NEAR(call.out.out.at({i, at[0], at[1]}), alone.out.out.at({0, at[0], 0, at[1]}),
                  tolerance(DType::bf16, 1));
    });
  }
}

TEST(Reports, R22) {
  Call call = make("f16 varlen=150:100,0:100,150:100 h1 d64 lse");
  fill_index(call.in.v);
  run(call);
  for (int64_t i = 0; i < 300; ++i) {
    const double mean = i < 150 ? 49.5 : 249.5;
    EXPECT_NEAR(call.out.out.at({i, 0, 0}), 1, tolerance(DType::f16, 1)) << i;
    EXPECT_NEAR(call.out.out.at({i, 0, 1}), mean, tolerance(DType::f16, mean)) << i;
    expect_lse(call, {0, i}, std::log(100.0));
  }
  Call poisoned = make("f16 varlen=150:100,0:100,150:100 h1 d64 lse");
  fill_index(poisoned.in.v);
  for (HostTensor* tensor : {&poisoned.in.k, &poisoned.in.v}) {
    HostTensor unused = slice(*tensor, 0, 100, 200);
    fill(unused, nan);
  }
  expect_same_bits(run(poisoned), call);
}

TEST(Reports, R24) {
  for_each_type([](DType type) {
    std::array<Call, 2> calls;
    for (size_t n = 0; n < 2; ++n) {
      calls[n] = make(type, "varlen=0,130,1,128 h11 d64 lse");
      fill_hash(calls[n]);
      for (HostTensor* cu : {&calls[n].in.cu_seqlens_q, &calls[n].in.cu_seqlens_k}) {
        HostTensor longer = make_tensor(DType::i32, {6});
        fill(longer, [&](const auto& at) { return at[0] < 5 ? cu->at({at[0]}) : n == 0 ? 2147483647.0 : 0.0; });
        *cu = slice(longer, 0, 0, 5);
      }
      run(calls[n]);
    }
    expect_oracle(calls[0]);
    expect_same_bits(calls[0], calls[1]);
  });
}

TEST(Reports, R26) {
  for_each_type([](DType type) {
    Call call = make(type, "varlen=70,30 h2 d64 lse");
    call.problem.total_q = call.problem.total_k = 160;
    for (HostTensor* tensor : {&call.in.q, &call.in.k, &call.in.v}) {
      *tensor = make_tensor(type, {160, 2, 64});
      fill_hash(*tensor, 7);
      HostTensor past_end = slice(*tensor, 0, 100, 160);
      fill(past_end, nan);
    }
    expect_oracle(run(call));
    expect_finite(slice(call.out.out, 0, 0, 100));
    const HostTensor& out = call.out.out;
    each_index({60, 2}, [&](const auto& at) {  // rows after the last sequence are not written
      for (int64_t d = 0; d < 64; ++d) EXPECT_TRUE(check::is_poison(out, out.index({100 + at[0], at[1], d})));
      EXPECT_TRUE(check::is_poison(call.out.lse, call.out.lse.index({at[1], 100 + at[0]})));
    });
  });
}

TEST(Reports, R28) {
  for_each_type([](DType type) {
    for (int64_t n : {1, 2, 10, 17}) {
      Call call = make(type, "varlen=10:20 h4 d8 lse");
      fill_hash(call);
      call.in.k = slice(call.in.k, 0, 0, n);
      call.in.v = slice(call.in.v, 0, 0, n);
      expect_refused(try_run(call), {"cu_seqlens_k", "20", std::to_string(n)});
    }
  });
}

TEST(Reports, R30) {
  const std::vector<std::vector<int64_t>> shapes{{3}, {5}, {1, 4}, {}};
  for (bool queries : {true, false})
    for (const auto& shape : shapes) {
      SCOPED_TRACE(testing::PrintToString(shape) + (queries ? " cu_seqlens_q" : " cu_seqlens_k"));
      Call call = make("f16 varlen=2,2,2 h1 d8 lse");
      (queries ? call.in.cu_seqlens_q : call.in.cu_seqlens_k) = make_tensor(DType::i32, shape);
      std::string actual = "[";  // as in error sentences
      for (int64_t size : shape) actual += (actual.size() > 1 ? ", " : "") + std::to_string(size);
      const char* name = shape.size() == 1 ? "cu_seqlens_" : queries ? "cu_seqlens_q" : "cu_seqlens_k";
      // With one dimension the two shapes contradict each other, so the sentence has both.
      expect_refused(try_run(call), {name, "batch + 1", actual + "]", shape.size() == 1 ? "[4]" : ""});
    }
}

TEST(Reports, R31) {
  std::array<float, 64> lse{};
  const auto attend = [&](const Dims& shape) {
    const Tensor x(static_cast<const void*>(nullptr), Type::bf16, shape),
        out(static_cast<void*>(nullptr), Type::bf16, shape);
    sdpa(x, x, x, out, {.lse = Tensor(lse.data(), {shape[0], shape[1], shape[2]})});
  };
  EXPECT_NO_THROW(attend({0, 4, 8, 64}));
  EXPECT_NO_THROW(attend({2, 4, 0, 64}));
  EXPECT_NO_THROW(attend({2, 0, 8, 64}));
  for (const Dims& shape : {Dims{0, 0, 2, 0}, Dims{2, 4, 8, 0}}) {  // head_dim 0 is allowed to be refused
    try {
      attend(shape);
    } catch (const Exception& e) {
      EXPECT_EQ(e.status(), RAPT_ERROR_INVALID_ARGUMENT);
      EXPECT_NE(std::string(e.what()).find("head_dim"), std::string::npos) << e.what();
    }
  }
}

TEST(Reports, R33) {
  std::array<float, 2 * 4 * 8 * 16> data{}, out{};
  const Tensor x(data.data(), {2, 4, 8, 16}), no_heads(data.data(), {2, 0, 8, 16});
  try {
    sdpa(x, no_heads, x, Tensor(out.data(), {2, 4, 8, 16}));
    ADD_FAILURE() << "k without heads was accepted";
  } catch (const Exception& e) {
    EXPECT_EQ(e.status(), RAPT_ERROR_INVALID_ARGUMENT);
    EXPECT_NE(std::string(e.what()).find('4'), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find('0'), std::string::npos) << e.what();
  }
  try {
    sdpa(x, no_heads, no_heads, Tensor(out.data(), {2, 4, 8, 16}));
    ADD_FAILURE() << "k and v without heads were accepted";
  } catch (const Exception& e) {
    EXPECT_EQ(e.status(), RAPT_ERROR_INVALID_ARGUMENT);
    EXPECT_NE(std::string(e.what()).find("heads_q = 4"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("heads_k = 0"), std::string::npos) << e.what();
  }
  const Tensor two_heads(data.data(), {2, 2, 8, 16});
  EXPECT_NO_THROW(sdpa(no_heads, two_heads, two_heads, Tensor(out.data(), {2, 0, 8, 16})));
}

TEST(Reports, R60) {
  for_each_type([](DType type) {
    for (int64_t row_stride : {int64_t{1} << 29, int64_t{1} << 30}) {
      SCOPED_TRACE(row_stride);
      Call call = make(type, "b1 h1 q6 k64 d64 mask=[1,1,q,k] lse");
      fill_hash(call.in.q, 1);
      fill_hash(call.in.k, 2);
      fill_identity(call.in.v);
      call.in.mask = map_lazily(DType::u8, {1, 1, 6, 64}, {1, 1, row_stride, 1});
      for (int64_t i = 0; i < 6; ++i) put(call.in.mask, {0, 0, i, i}, 1);
      run(call);
      each_index({6, 64}, [&](const auto& at) {
        EXPECT_EQ(call.out.out.at({0, 0, at[0], at[1]}), at[0] == at[1] ? 1.0 : 0.0) << testing::PrintToString(at);
      });
    }
  });
}

TEST(Reports, R62) {
  Call call = make("f16 b3 h1 q1 k8 d64 lse");
  const std::vector<int64_t> strides{int64_t{1} << 30, 512, 64, 1};
  call.in.k = map_lazily(DType::f16, {3, 1, 8, 64}, strides);
  call.in.v = map_lazily(DType::f16, {3, 1, 8, 64}, strides);
  fill(call.in.v, [](const auto& at) { return static_cast<double>(at[0] + 1); });
  run(call);
  for (int64_t b = 0; b < 3; ++b) expect_row(call, {b, 0, 0}, std::vector<double>(64, static_cast<double>(b + 1)));
}

TEST(Reports, R67) {
  for (const bool batches : {true, false}) {
    Call call = make(batches ? "f16 b65536 h1 q4 k4 d16" : "f16 b1 h65536 q4 k4 d16");
    fill(call.in.v, [&](const auto& at) { return static_cast<double>((batches ? at[0] : at[1]) % 128); });
    run(call);
    for (int64_t n : {0, 1, 65534, 65535})
      for (int64_t i = 0; i < 4; ++i)
        expect_row(call, batches ? std::vector{n, int64_t{0}, i} : std::vector{int64_t{0}, n, i},
                   std::vector<double>(16, static_cast<double>(n % 128)));
  }
}

TEST(Reports, R69) {
  std::string lengths = "16";
  for (int i = 1; i < 80000; ++i) lengths += ",16";
  Call call = make("f16 varlen=" + lengths + " h1 d16");
  fill(call.in.v, [](const auto& at) { return static_cast<double>(at[0] / 16 % 128); });
  run(call);
  for (int64_t n : {0, 65534, 65535, 79999})
    for (int64_t i = 16 * n; i < 16 * n + 16; ++i)
      expect_row(call, {i, 0}, std::vector<double>(16, static_cast<double>(n % 128)));
  int64_t wrong = 0;
  for (int64_t i = 0; i < 16 * 80000; ++i)
    wrong += call.out.out.at({i, 0, i % 16}) == static_cast<double>(i / 16 % 128) ? 0 : 1;
  EXPECT_EQ(wrong, 0);
}

TEST(Reports, R71) {
  for_each_type([](DType type) {
    for (const auto& [heads_q, heads_k] : std::vector<std::pair<int64_t, int64_t>>{{33, 2}, {3, 2}, {5, 3}, {2, 4}})
      for (const char* line : {"b1 h1 q8 k8 d64 lse", "b1 h1 q8 k8 d64 lse page=4", "varlen=8 h1 d64 lse"}) {
        Call call = make(type, line);
        const bool packed = call.problem.varlen;
        call.problem.heads_q = heads_q;
        call.problem.heads_k = heads_k;
        const auto shape = [&](int64_t heads) {
          return packed ? std::vector<int64_t>{8, heads, 64} : std::vector<int64_t>{1, heads, 8, 64};
        };
        call.in.q = make_tensor(type, shape(heads_q));
        call.in.k = make_tensor(type, shape(heads_k));
        call.in.v = make_tensor(type, shape(heads_k));
        expect_refused(try_run(call), {"heads", std::to_string(heads_q), std::to_string(heads_k)});
      }
  });
}

namespace {
// A call on a paged cache that the test fills: one sequence, q [1, heads, 1, dim].
struct PagedCall {
  HostTensor q, k, v, table, used, out;
  rapt_status status = RAPT_OK;
  std::string message;

  PagedCall& run() {
    std::deque<check::View> views;
    const auto view = [&](const char* name, const HostTensor& t) {
      return views.emplace_back(name, t, check::in_host_memory).get();
    };
    rapt_sdpa_args args{};
    args.struct_size = sizeof args;
    args.q = view("q", q), args.k = view("k", k), args.v = view("v", v), args.out = view("out", out);
    args.block_table = view("block_table", table), args.seqused_k = view("seqused_k", used);
    status = rapt_sdpa(nullptr, &args, nullptr);
    message = status == RAPT_OK ? "" : rapt_last_error();
    return *this;
  }
};
}  // namespace

TEST(Reports, R64) {
  constexpr int64_t pages = 65537, heads = 8, size = 16, dim = 128;
  PagedCall call;
  call.q = make_tensor(DType::bf16, {1, heads, 1, dim}), call.out = make_tensor(DType::bf16, {1, heads, 1, dim});
  call.table = make_tensor(DType::i32, {1, 1}), call.used = make_tensor(DType::i32, {1});
  // One tensor [pages, 2, size, heads, dim] holds K and V.
  const std::vector<int64_t> strides = {2 * size * heads * dim, dim, heads * dim, 1};
  call.k = map_lazily(DType::bf16, {pages + 1, heads, size, dim}, strides);  // V of the last page is after its K
  call.v = call.k;
  call.v.offset = size * heads * dim;
  call.v.shape[0] = call.k.shape[0] = pages;
  fill_hash(call.q, 1);
  call.used.set({0}, size);
  std::vector<double> first;
  for (const int64_t page : {int64_t{0}, pages - 2, pages - 1}) {
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t j = 0; j < size; ++j)
        for (int64_t d = 0; d < dim; ++d) {
          call.k.set({page, h, j, d}, std::sin(static_cast<double>(h + 3 * j + 7 * d)));
          call.v.set({page, h, j, d}, std::cos(static_cast<double>(5 * h + j + 2 * d)));
        }
    call.table.set({0, 0}, static_cast<double>(page));
    EXPECT_EQ(call.run().status, RAPT_OK) << call.message;
    std::vector<double> values;
    each_index(call.out.shape, [&](const auto& at) { values.push_back(call.out.at(at)); });
    if (page == 0)
      first = values;
    else
      EXPECT_EQ(values, first) << "page " << page;
  }
}

TEST(Reports, R116) {
  for_each_type([](DType type) {
    std::vector<double> first;
    for (const int tail : {-1, 2147483647, 7, 3}) {  // no page, no page, a page of NaN, the sequence's own first page
      PagedCall call;
      call.q = make_tensor(type, {1, 2, 1, 16}), call.out = make_tensor(type, {1, 2, 1, 16});
      call.k = make_tensor(type, {9, 2, 4, 16}), call.v = make_tensor(type, {9, 2, 4, 16});
      for (HostTensor* t : {&call.q, &call.k, &call.v}) fill_hash(*t, 5);
      for (HostTensor* t : {&call.k, &call.v})
        each_index({1, 2, 4, 16}, [&](const auto& at) { t->set({7, at[1], at[2], at[3]}, nan); });
      call.table = make_tensor(DType::i32, {1, 8}), call.used = make_tensor(DType::i32, {1});
      fill(call.table, tail);
      call.table.set({0, 0}, 3), call.table.set({0, 1}, 8), call.used.set({0}, 5);
      EXPECT_EQ(call.run().status, RAPT_OK) << call.message;
      std::vector<double> values;
      each_index(call.out.shape, [&](const auto& at) { values.push_back(call.out.at(at)); });
      if (first.empty()) first = values;
      EXPECT_EQ(values, first) << "tail " << tail;
    }
  });
}

TEST(Reports, R118) {
  for_each_type([](DType type) {
    PagedCall call;
    call.q = make_tensor(type, {1, 1, 1, 16}), call.out = make_tensor(type, {1, 1, 1, 16});
    call.k = make_tensor(type, {4, 1, 4, 16}), call.v = make_tensor(type, {4, 1, 4, 16});
    call.table = make_tensor(DType::i32, {1, 4}), call.used = make_tensor(DType::i32, {1});
    call.used.set({0}, 20);
    EXPECT_EQ(call.run().status, RAPT_ERROR_INVALID_ARGUMENT);
    for (const char* word : {"seqused_k[0] = 20", "16"})
      EXPECT_NE(call.message.find(word), std::string::npos) << call.message;
  });
}

TEST(Reports, R121) {
  for_each_type([](DType type) {
    for (const char* rest : {"b2 h4:2 q1 k100 d64 lse", "b2 h4:2 q37 k100 d64 causal lse", "b1 h2 q100 k100 d64 lse"}) {
      Call dense = make(type, rest);
      fill_hash(dense);
      run(dense);
      for (const int size : {1, 2, 3, 16, 19, 64, 128, 256}) {
        SCOPED_TRACE(size);
        Call paged = make(type, std::string(rest) + " page=" + std::to_string(size));
        paged.in = dense.in;
        expect_same_bits(run(paged), dense);
      }
    }
  });
}

TEST(Reports, R107) {
  const std::string line = "bf16 b1 h16:8 q1 k4096 d128 lse";
  Call heads = make(line), hash = make(line);
  fill_hash(hash);
  heads.in = hash.in;
  heads.in.v = make_tensor(DType::bf16, hash.in.v.shape);
  fill(heads.in.v, [](const auto& at) { return static_cast<double>(at[1] + 1); });
  for (int64_t splits : {1, 2, 3, 16, 32, 64}) {
    SCOPED_TRACE(splits);
    heads.problem.splits = hash.problem.splits = splits;
    run(heads);
    for (int64_t h = 0; h < 16; ++h)
      expect_row(heads, {0, h, 0}, std::vector<double>(128, static_cast<double>(h / 2 + 1)));
    expect_oracle(run(hash));
  }
}

TEST(Reports, R109) {
  for_each_type(
      [](DType type) {
        Call first = make(type, "b1 h4 q512 k512 d64 lse");
        fill_hash(first);
        run(first);
        Call again = make(type, "b1 h4 q512 k512 d64 lse");
        again.in = first.in;
        const auto repeat = [&](int times) {
          for (int n = 0; n < times; ++n) expect_same_bits(run(again), first);
        };
        repeat(50);
        std::atomic<bool> stop{false};
        std::thread busy([&] {  // another call at the same time, on its own context
          const Context context;
          Call other = make("f32 b1 h2 q256 k256 d64");
          fill_hash(other, 9);
          while (!stop) try_run(other, context.get());
          EXPECT_EQ(other.status, RAPT_OK) << other.message;
        });
        repeat(20);
        stop = true;
        busy.join();
      },
      {DType::f32, DType::bf16});
}

TEST(Reports, R111) {
  std::string lengths = "513";
  for (int i = 0; i < 40; ++i) lengths += ",3";
  Call alone = make("bf16 varlen=513 h2 d128 lse invariant"),
       together = make("bf16 varlen=" + lengths + " h2 d128 lse invariant");
  fill_hash(together);
  alone.in.q = slice(together.in.q, 0, 0, 513);
  alone.in.k = slice(together.in.k, 0, 0, 513);
  alone.in.v = slice(together.in.v, 0, 0, 513);
  run(alone);
  expect_oracle(run(together));
  expect_same_bits(alone.out.out, slice(together.out.out, 0, 0, 513));
  expect_same_bits(alone.out.lse, slice(together.out.lse, 1, 0, 513));
}

// Pages that no sequence uses hold NaN. Equal calls give the same, finite bits.
TEST(Reports, R112) {
  Call first = make("bf16 h8:2 d128 varlen=33:272,11:192,11:240,11:64,11:288,11:544,12:448 page=16 lse");
  fill_hash(first);
  expect_oracle(run(first));
  for (int i = 0; i < 3; ++i) {
    Call again = make("bf16 h8:2 d128 varlen=33:272,11:192,11:240,11:64,11:288,11:544,12:448 page=16 lse");
    again.in = first.in;
    expect_same_bits(run(again), first);
  }
}

TEST(Reports, R123) {
  for_each_type([](DType type) {
    Call plain = make(type, "varlen=5,7 h2 d16 lse"), strided = make(type, "varlen=5,7 h2 d16 lse");
    fill_hash(plain);
    strided.in = plain.in;
    HostTensor base = make_strided(DType::i32, {5}, {1});
    const double values[] = {0, 99, 5, 99, 12};
    fill(base, [&](const auto& at) { return values[at[0]]; });
    base.shape = {3};
    base.strides = {2};
    strided.in.cu_seqlens_q = strided.in.cu_seqlens_k = base;
    expect_oracle(run(plain));
    expect_same_bits(run(strided), plain);
    Call pages = make(type, "b2 h2 q3 k40 d16 page=16 seqused=40,7 lse");  // its table is a part of a wider one
    fill_hash(pages);
    expect_oracle(run(pages));
  });
}

TEST(Reports, R149) {
  for_each_type([](DType type) {
    Call call = make(type, "varlen=3,7 h2 d64 lse");
    fill_hash(call);
    run(call);
    EXPECT_EQ(call.out.lse.shape, (std::vector<int64_t>{2, 10}));
    expect_oracle(call);
    for (const std::vector<int64_t>& padded : {std::vector<int64_t>{2, 2, 7}, std::vector<int64_t>{10, 2}}) {
      rapt_status status = RAPT_OK;
      check::Outputs outputs = check::make_outputs(call.problem);
      outputs.lse = make_tensor(DType::f32, padded);
      status = check::run_sdpa(call.problem, call.in, outputs);
      EXPECT_EQ(status, RAPT_ERROR_INVALID_ARGUMENT);
      EXPECT_NE(std::string(rapt_last_error()).find("lse"), std::string::npos) << rapt_last_error();
    }
  });
}

}  // namespace rapt::test
