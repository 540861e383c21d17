// Bad input: every wrong call is refused with a status and a sentence that has the argument and the value, and it
// writes nothing. There are a valid dense call and a valid packed call. Each row of the tables breaks one rule.
#include <gtest/gtest.h>

#include <array>
#include <cctype>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "arguments/sdpa_arguments.h"
#include "cuda/cuda.h"
#include "quantize_call.h"
#include "support.h"

namespace rapt::test {
namespace {

constexpr size_t slots = 20;
enum Slot : size_t {
  q,
  k,
  v,
  out,
  lse,
  bias,
  mask,
  alibi_slopes,
  sinks,
  cu_seqlens_q,
  cu_seqlens_k,
  seqused_q,
  seqused_k,
  block_table,
  q_descale,
  k_descale,
  v_descale,
  k_mean,
  q_starts,
  k_starts
};

// rapt_sdpa_args and all its tensors. Rows of the tables change tensors, devices or scalars. `last` can change
// pointers, after everything else.
struct Arguments {
  std::array<HostTensor, slots> tensors;
  std::array<rapt_device, slots> devices;
  std::array<rapt_tensor, slots> views{};
  rapt_sdpa_args args{};
  std::function<void(Arguments&)> last;

  HostTensor& operator[](Slot slot) { return tensors[slot]; }
  void zero(Slot slot, DType type, const std::vector<int64_t>& shape) { tensors[slot] = make_tensor(type, shape); }

  const rapt_sdpa_args* build() {
    args.struct_size = sizeof(args);
    const rapt_tensor** const fields[slots] = {&args.q,
                                               &args.k,
                                               &args.v,
                                               &args.out,
                                               &args.lse,
                                               &args.bias,
                                               &args.mask,
                                               &args.alibi_slopes,
                                               &args.sinks,
                                               &args.cu_seqlens_q,
                                               &args.cu_seqlens_k,
                                               &args.seqused_q,
                                               &args.seqused_k,
                                               &args.block_table,
                                               &args.q_descale,
                                               &args.k_descale,
                                               &args.v_descale,
                                               &args.k_mean,
                                               &args.q_starts,
                                               &args.k_starts};
    for (size_t s = 0; s < slots; ++s) {
      const HostTensor& t = tensors[s];
      views[s] = {t.data(),       devices[s],      static_cast<int32_t>(t.dtype), static_cast<int32_t>(t.shape.size()),
                  t.shape.data(), t.strides.data()};
      *fields[s] = t.present() ? &views[s] : nullptr;
    }
    if (last) last(*this);
    return &args;
  }
};

Arguments base() {
  Arguments a;
  a.devices.fill({RAPT_DEVICE_CPU, 0});
  return a;
}

// The valid dense call: b2 h4:2 q3 k7 d8:6.
Arguments dense() {
  Arguments a = base();
  a.zero(q, DType::f16, {2, 4, 3, 8});
  a.zero(k, DType::f16, {2, 2, 7, 8});
  a.zero(v, DType::f16, {2, 2, 7, 6});
  a.zero(out, DType::f16, {2, 4, 3, 6});
  a.zero(lse, DType::f32, {2, 4, 3});
  return a;
}

// The valid packed call, with lengths 3:5 and 2:4.
Arguments packed() {
  Arguments a = base();
  a.zero(q, DType::f16, {5, 4, 8});
  a.zero(k, DType::f16, {9, 2, 8});
  a.zero(v, DType::f16, {9, 2, 6});
  a.zero(out, DType::f16, {5, 4, 6});
  a.zero(lse, DType::f32, {4, 5});
  a.zero(cu_seqlens_q, DType::i32, {3});
  a.zero(cu_seqlens_k, DType::i32, {3});
  const int64_t ends_q[] = {0, 3, 5}, ends_k[] = {0, 5, 9};
  fill(a[cu_seqlens_q], [&](const auto& at) { return static_cast<double>(ends_q[at[0]]); });
  fill(a[cu_seqlens_k], [&](const auto& at) { return static_cast<double>(ends_k[at[0]]); });
  a.args.has = RAPT_HAS_MAX_SEQLEN_Q | RAPT_HAS_MAX_SEQLEN_K;
  a.args.max_seqlen_q = 3;
  a.args.max_seqlen_k = 5;
  return a;
}

// The valid paged call: b2 h4:2 q3 k40 d8:6 page=16, with 40 and 5 keys.
Arguments paged() {
  Arguments a = base();
  a.zero(q, DType::f16, {2, 4, 3, 8});
  a.zero(k, DType::f16, {9, 2, 16, 8});
  a.zero(v, DType::f16, {9, 2, 16, 6});
  a.zero(out, DType::f16, {2, 4, 3, 6});
  a.zero(lse, DType::f32, {2, 4, 3});
  a.zero(block_table, DType::i32, {2, 3});
  a.zero(seqused_k, DType::i32, {2});
  const int64_t pages[2][3] = {{8, 0, 3}, {5, -1, 99}}, lengths[] = {40, 5};
  fill(a[block_table], [&](const auto& at) { return static_cast<double>(pages[at[0]][at[1]]); });
  fill(a[seqused_k], [&](const auto& at) { return static_cast<double>(lengths[at[0]]); });
  return a;
}

struct Row {
  const char* name;
  std::function<void(Arguments&)> change;
  std::vector<std::string> words;  // all these words must be in the message
  bool contents = false;           // true: the rule is about contents of tensors, so rapt_prepare accepts the call
  rapt_status status = RAPT_ERROR_INVALID_ARGUMENT;
};

// Expects every word in the message as a separate word, not inside a longer word or number.
void expect_words(const std::string& message, const std::vector<std::string>& words) {
  const auto joins = [](char a, char b) {
    const auto in_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
    return in_word(a) && in_word(b);
  };
  for (const std::string& word : words) {
    bool found = false;
    for (size_t at = message.find(word); at != std::string::npos && !found; at = message.find(word, at + 1)) {
      const size_t end = at + word.size();
      found = !(at > 0 && joins(message[at - 1], word.front())) &&
              !(end < message.size() && joins(word.back(), message[end]));
    }
    EXPECT_TRUE(found) << "'" << word << "' is not in: " << message;
  }
}

// Fills all storage of the outputs with poison, independent of shapes and strides.
void poison(Arguments& a) {
  for (Slot s : {out, lse})
    if (a[s].present()) {
      const HostTensor& t = a[s];
      for (int64_t i = 0; i < t.size() * bytes_of(t.dtype); ++i) t.data()[i] = static_cast<std::byte>(0x5a + i % 7);
    }
}

void expect_refused(Arguments a, const Row& row) {
  SCOPED_TRACE(row.name);
  poison(a);
  row.change(a);
  const auto written = [kept_out = a[out], kept_lse = a[lse]] { return std::array{bits(kept_out), bits(kept_lse)}; };
  const auto before = written();
  const rapt_sdpa_args* args = a.build();
  EXPECT_EQ(rapt_sdpa(nullptr, args, nullptr), row.status) << rapt_last_error();
  expect_words(rapt_last_error(), row.words);
  EXPECT_EQ(written(), before) << "an output was written";
  if (!row.contents) {
    EXPECT_EQ(rapt_prepare(nullptr, args, nullptr), row.status) << "rapt_prepare: " << rapt_last_error();
    size_t bytes = 12345;
    EXPECT_EQ(rapt_workspace_size(nullptr, args, &bytes, nullptr), row.status) << "rapt_workspace_size";
    EXPECT_EQ(bytes, 12345u);
  }
}

void reshape(Arguments& a, Slot slot, const std::vector<int64_t>& shape) { a.zero(slot, a[slot].dtype, shape); }
void retype(Arguments& a, Slot slot, DType type) { a.zero(slot, type, a[slot].shape); }

// The valid paged call with descales of single keys. Descales of rows that no sequence uses are NaN.
Arguments paged_tokens() {
  Arguments a = paged();
  retype(a, k, DType::e4m3), retype(a, v, DType::e5m2);
  for (const Slot s : {k_descale, v_descale}) {
    a.zero(s, DType::f32, {9, 16, 2});
    fill(a[s], [](const auto& at) {
      const bool used = at[0] == 8 || at[0] == 0 || (at[0] == 3 && at[1] < 8) || (at[0] == 5 && at[1] < 5);
      return used ? 1.0 : std::nan("");
    });
  }
  a.args.k_scales = a.args.v_scales = RAPT_SCALE_TOKEN;
  return a;
}

}  // namespace

TEST(BadInput, TheUnchangedCallsAreAccepted) {
  Arguments a = dense(), b = packed(), c = paged();
  EXPECT_EQ(rapt_sdpa(nullptr, a.build(), nullptr), RAPT_OK) << rapt_last_error();
  EXPECT_EQ(rapt_sdpa(nullptr, b.build(), nullptr), RAPT_OK) << rapt_last_error();
  EXPECT_EQ(rapt_sdpa(nullptr, c.build(), nullptr), RAPT_OK) << rapt_last_error();
}

// Sizes of 0 are legal: a cache without pages, and packed queries.
TEST(BadInput, ACacheWithoutPagesIsAccepted) {
  Arguments a = packed();
  a[cu_seqlens_k] = {};
  a.zero(k, DType::f16, {0, 2, 16, 8}), a.zero(v, DType::f16, {0, 2, 16, 6}), a.zero(block_table, DType::i32, {2, 0});
  a.args.has &= ~RAPT_HAS_MAX_SEQLEN_K, a.args.max_seqlen_k = 0;
  ASSERT_EQ(rapt_sdpa(nullptr, a.build(), nullptr), RAPT_OK) << rapt_last_error();
  each_index(a[out].shape, [&](const auto& at) { EXPECT_EQ(a[out].at(at), 0.0); });
  each_index(a[lse].shape, [&](const auto& at) { EXPECT_EQ(a[lse].at(at), -infinity); });
}

TEST(BadInput, Pages) {
  const auto set_maximum = [](Arguments& a, int64_t n) {
    a.args.has |= RAPT_HAS_MAX_SEQLEN_K;
    a.args.max_seqlen_k = n;
  };
  const Row rows[] = {
      {"dtype of the table", [](Arguments& a) { retype(a, block_table, DType::i64); }, {"block_table", "i32"}},
      {"rank of the table", [](Arguments& a) { reshape(a, block_table, {6}); }, {"block_table", "rank", "2"}},
      {"batch of the table",
       [](Arguments& a) {
         reshape(a, block_table, {3, 3});
       },
       {"block_table", "batch"}},
      {"rank of k",
       [](Arguments& a) {
         reshape(a, k, {9, 2, 8});
       },
       {"k", "rank", "4", "page_size"}},
      {"no rows in a page",
       [](Arguments& a) {
         reshape(a, k, {9, 2, 0, 8});
       },
       {"k", "page_size", "1"}},
      {"no pages",
       [](Arguments& a) {
         reshape(a, k, {0, 2, 16, 8});
       },
       {"k", "num_pages", "1"}},
      {"pages of v",
       [](Arguments& a) {
         reshape(a, v, {8, 2, 16, 6});
       },
       {"v", "num_pages"}},
      {"page size of v",
       [](Arguments& a) {
         reshape(a, v, {9, 2, 32, 6});
       },
       {"v", "page_size"}},
      {"heads of v",
       [](Arguments& a) {
         reshape(a, v, {9, 1, 16, 6});
       },
       {"v", "heads_k"}},
      {"a maximum beyond the table",
       [=](Arguments& a) { set_maximum(a, 49); },
       {"max_seqlen_k", "49", "48", "block_table"}},
      {"a page beyond the cache",
       [](Arguments& a) {
         a[block_table].set({0, 2}, 9);
       },
       {"block_table[0, 2]", "9", "8"},
       true},
      {"a negative page",
       [](Arguments& a) {
         a[block_table].set({1, 0}, -1);
       },
       {"block_table[1, 0]", "-1"},
       true},
      {"a length beyond the table",
       [](Arguments& a) { a[seqused_k].set({0}, 49); },
       {"seqused_k[0]", "49", "48"},
       true},
      {"a length beyond the maximum", [=](Arguments& a) { set_maximum(a, 39); }, {"seqused_k[0]", "40", "39"}, true},
  };
  for (const Row& row : rows) expect_refused(paged(), row);
  const Row both = {"cu_seqlens_k",
                    [](Arguments& a) {
                      a.zero(k, DType::f16, {9, 2, 16, 8}), a.zero(v, DType::f16, {9, 2, 16, 6});
                      a.zero(block_table, DType::i32, {2, 3});
                    },
                    {"cu_seqlens_k", "NULL", "block_table"}};
  expect_refused(packed(), both);
}

TEST(BadInput, DescalesOfSingleKeysInPages) {
  Arguments valid = paged_tokens();
  EXPECT_EQ(rapt_sdpa(nullptr, valid.build(), nullptr), RAPT_OK) << rapt_last_error();
  const Row rows[] = {{"the shape of dense keys",
                       [](Arguments& a) {
                         reshape(a, k_descale, {2, 2, 48});
                       },
                       {"k_descale", "[2, 2, 48]", "[num_pages, page_size, heads_k]", "[9, 16, 2]"}},
                      {"heads before rows",
                       [](Arguments& a) {
                         reshape(a, v_descale, {9, 2, 16});
                       },
                       {"v_descale", "[9, 2, 16]", "[9, 16, 2]"}},
                      {"a negative descale",
                       [](Arguments& a) {
                         a[k_descale].set({3, 7, 1}, -1);
                       },
                       {"k_descale[3, 7, 1]", "-1", "negative"},
                       true},
                      {"a descale that is not a number",
                       [](Arguments& a) {
                         a[v_descale].set({5, 4, 0}, std::nan(""));
                       },
                       {"v_descale[5, 4, 0]", "nan", "finite"},
                       true}};
  for (const Row& row : rows) expect_refused(paged_tokens(), row);
}

TEST(BadInput, RequiredTensors) {
  const Row rows[] = {
      {"q", [](Arguments& a) { a[q] = {}; }, {"q", "NULL"}},
      {"k", [](Arguments& a) { a[k] = {}; }, {"k", "NULL"}},
      {"v", [](Arguments& a) { a[v] = {}; }, {"v", "NULL"}},
      {"out", [](Arguments& a) { a[out] = {}; }, {"out", "NULL"}},
      {"data of q", [](Arguments& a) { a.last = [](Arguments& x) { x.views[q].data = nullptr; }; }, {"q", "NULL"}},
      {"shape of k",
       [](Arguments& a) { a.last = [](Arguments& x) { x.views[k].shape = nullptr; }; },
       {"k", "shape", "NULL"}},
  };
  for (const Row& row : rows) expect_refused(dense(), row);
  const Row packed_rows[] = {
      {"cu_seqlens_q alone", [](Arguments& a) { a[cu_seqlens_k] = {}; }, {"cu_seqlens_k"}},
      {"cu_seqlens_k alone", [](Arguments& a) { a[cu_seqlens_q] = {}; }, {"cu_seqlens_q"}},
      {"no max_seqlen_q", [](Arguments& a) { a.args.has &= ~RAPT_HAS_MAX_SEQLEN_Q; }, {"max_seqlen_q"}},
      {"no max_seqlen_k", [](Arguments& a) { a.args.has &= ~RAPT_HAS_MAX_SEQLEN_K; }, {"max_seqlen_k"}},
  };
  for (const Row& row : packed_rows) expect_refused(packed(), row);
}

TEST(BadInput, Ranks) {
  const Row rows[] = {
      {"q of 3",
       [](Arguments& a) {
         reshape(a, q, {4, 3, 8});
       },
       {"q", "3"}},
      {"k of 3",
       [](Arguments& a) {
         reshape(a, k, {2, 5, 8});
       },
       {"k", "3"}},
      {"v of 2",
       [](Arguments& a) {
         reshape(a, v, {5, 6});
       },
       {"v", "2"}},
      {"out of 3",
       [](Arguments& a) {
         reshape(a, out, {4, 3, 6});
       },
       {"out", "3"}},
      {"lse of 4",
       [](Arguments& a) {
         reshape(a, lse, {2, 4, 3, 1});
       },
       {"lse", "[2, 4, 3, 1]"}},
      {"q of 7", [](Arguments& a) { a.last = [](Arguments& x) { x.views[q].rank = 7; }; }, {"q", "7"}},
      {"q of -1", [](Arguments& a) { a.last = [](Arguments& x) { x.views[q].rank = -1; }; }, {"q", "-1"}},
      {"alibi of 0", [](Arguments& a) { a.zero(alibi_slopes, DType::f32, {}); }, {"alibi_slopes"}},
      {"sinks of 2",
       [](Arguments& a) {
         a.zero(sinks, DType::f32, {1, 4});
       },
       {"sinks", "[1, 4]"}},
      {"starts of 2",
       [](Arguments& a) {
         a.zero(q_starts, DType::i64, {1, 2});
       },
       {"q_starts", "[1, 2]"}},
      {"seqused of 2",
       [](Arguments& a) {
         a.zero(seqused_k, DType::i32, {2, 1});
       },
       {"seqused_k", "[2, 1]"}},
  };
  for (const Row& row : rows) expect_refused(dense(), row);
  const Row packed_rows[] = {
      {"q of 4",
       [](Arguments& a) {
         reshape(a, q, {1, 4, 5, 8});
       },
       {"q", "4"}},
      {"cu_seqlens_q of 2",
       [](Arguments& a) {
         reshape(a, cu_seqlens_q, {1, 3});
       },
       {"cu_seqlens_q", "[1, 3]"}},
  };
  for (const Row& row : packed_rows) expect_refused(packed(), row);
}

TEST(BadInput, Dtypes) {
  const Row rows[] = {
      {"q i32", [](Arguments& a) { retype(a, q, DType::i32); }, {"q", "i32"}},
      {"k u8", [](Arguments& a) { retype(a, k, DType::u8); }, {"k", "u8"}},
      {"v i64", [](Arguments& a) { retype(a, v, DType::i64); }, {"v", "i64"}},
      {"out e4m3", [](Arguments& a) { retype(a, out, DType::e4m3); }, {"out", "e4m3"}},
      {"lse f16", [](Arguments& a) { retype(a, lse, DType::f16); }, {"lse", "f16"}},
      {"bias u8",
       [](Arguments& a) {
         a.zero(bias, DType::u8, {3, 5});
       },
       {"bias", "u8"}},
      {"mask f32",
       [](Arguments& a) {
         a.zero(mask, DType::f32, {3, 5});
       },
       {"mask", "f32"}},
      {"alibi f16", [](Arguments& a) { a.zero(alibi_slopes, DType::f16, {4}); }, {"alibi_slopes", "f16"}},
      {"sinks bf16", [](Arguments& a) { a.zero(sinks, DType::bf16, {4}); }, {"sinks", "bf16"}},
      {"seqused u8", [](Arguments& a) { a.zero(seqused_k, DType::u8, {2}); }, {"seqused_k", "u8"}},
      {"used queries f32", [](Arguments& a) { a.zero(seqused_q, DType::f32, {2}); }, {"seqused_q", "f32"}},
      {"starts f32", [](Arguments& a) { a.zero(k_starts, DType::f32, {2}); }, {"k_starts", "f32"}},
      {"q of no dtype", [](Arguments& a) { a.last = [](Arguments& x) { x.views[q].dtype = 0; }; }, {"q", "0"}},
      {"q of dtype 99", [](Arguments& a) { a.last = [](Arguments& x) { x.views[q].dtype = 99; }; }, {"q", "99"}},
  };
  for (const Row& row : rows) expect_refused(dense(), row);
  const Row cu{"cu f32", [](Arguments& a) { retype(a, cu_seqlens_k, DType::f32); }, {"cu_seqlens_k", "f32"}};
  expect_refused(packed(), cu);
}

// On a GPU the kernels read the lists, each with its own width.
TEST(BadInput, ListsOnGpus) {
  const auto widen = [](Slot slot, DType type) {
    return [=](Arguments& a) {
      a.zero(slot, type, slot == cu_seqlens_q || slot == cu_seqlens_k ? a[slot].shape : std::vector<int64_t>{2});
      a.devices.fill({RAPT_DEVICE_CUDA, 0});
    };
  };
  const Row rows[] = {{"cu_q i64", widen(cu_seqlens_q, DType::i64), {"cu_seqlens_q", "i64", "i32"}},
                      {"cu_k i64", widen(cu_seqlens_k, DType::i64), {"cu_seqlens_k", "i64", "i32"}},
                      {"used q i64", widen(seqused_q, DType::i64), {"seqused_q", "i64", "i32"}},
                      {"used k i64", widen(seqused_k, DType::i64), {"seqused_k", "i64", "i32"}},
                      {"q_starts i32", widen(q_starts, DType::i32), {"q_starts", "i32", "i64"}},
                      {"k_starts i32", widen(k_starts, DType::i32), {"k_starts", "i32", "i64"}}};
  for (const Row& row : rows) expect_refused(packed(), row);
}

// On the CPU every list may be i32 or i64, also with strides, with the same result.
TEST(BadInput, ListsOfEitherWidthAreAccepted) {
  const auto outputs = [](DType type, int64_t stride) {
    Arguments a = packed();
    int64_t value = 0;
    for (const auto slot : {q, k, v}) fill(a[slot], [&](const auto&) { return static_cast<double>(value++ % 7) - 3; });
    const auto list = [&](Slot slot, std::vector<double> values) {
      a[slot] = check::make_strided(type, {std::ssize(values)}, {stride});
      for (int64_t i = 0; i < std::ssize(values); ++i) put(a[slot], {i}, values[static_cast<size_t>(i)]);
    };
    list(cu_seqlens_q, {0, 3, 5}), list(cu_seqlens_k, {0, 5, 9}), list(seqused_q, {2, 2}), list(seqused_k, {4, 1});
    list(q_starts, {1, 0}), list(k_starts, {0, 1});
    a.args.flags = RAPT_CAUSAL;
    EXPECT_EQ(rapt_sdpa(nullptr, a.build(), nullptr), RAPT_OK) << rapt_last_error();
    return std::pair{bits(a[out]), bits(a[lse])};
  };
  Arguments usual = packed();
  EXPECT_EQ(rapt_sdpa(nullptr, usual.build(), nullptr), RAPT_OK);
  for (const int64_t stride : {1, 3}) EXPECT_EQ(outputs(DType::i32, stride), outputs(DType::i64, stride));
  EXPECT_EQ(outputs(DType::i32, 1), outputs(DType::i32, 2));
}

TEST(BadInput, Shapes) {
  const Row rows[] = {
      {"k batch",
       [](Arguments& a) {
         reshape(a, k, {3, 2, 5, 8});
       },
       {"k", "[3, 2, 5, 8]"}},
      {"k head_dim",
       [](Arguments& a) {
         reshape(a, k, {2, 2, 5, 16});
       },
       {"k", "16", "8"}},
      {"v heads",
       [](Arguments& a) {
         reshape(a, v, {2, 4, 5, 6});
       },
       {"v", "[2, 4, 5, 6]"}},
      {"v seqlen",
       [](Arguments& a) {
         reshape(a, v, {2, 2, 4, 6});
       },
       {"v", "[2, 2, 4, 6]"}},
      {"out head_dim",
       [](Arguments& a) {
         reshape(a, out, {2, 4, 3, 8});
       },
       {"out", "[2, 4, 3, 8]", "[2, 4, 3, 6]"}},
      {"lse",
       [](Arguments& a) {
         reshape(a, lse, {2, 3, 4});
       },
       {"lse", "[2, 3, 4]", "[2, 4, 3]"}},
      {"heads",
       [](Arguments& a) {
         reshape(a, k, {2, 3, 5, 8}), reshape(a, v, {2, 3, 5, 6});
       },
       {"heads_q", "4", "3"}},
      {"negative size", [](Arguments& a) { a.last = [](Arguments& x) { x[q].shape[2] = -3; }; }, {"q", "-3"}},
      {"head_dim 0",
       [](Arguments& a) {
         reshape(a, q, {2, 4, 3, 0}), reshape(a, k, {2, 2, 7, 0});
       },
       {"head_dim", "0"}},
      {"bias",
       [](Arguments& a) {
         a.zero(bias, DType::f32, {2, 3, 5});
       },
       {"bias", "[2, 3, 5]", "4"}},
      {"mask",
       [](Arguments& a) {
         a.zero(mask, DType::u8, {3, 4});
       },
       {"mask", "[3, 4]", "7"}},
      {"alibi", [](Arguments& a) { a.zero(alibi_slopes, DType::f32, {2}); }, {"alibi_slopes", "[2]", "4"}},
      {"sinks", [](Arguments& a) { a.zero(sinks, DType::f32, {3}); }, {"sinks", "[3]", "4"}},
      {"seqused", [](Arguments& a) { a.zero(seqused_k, DType::i32, {3}); }, {"seqused_k", "[3]", "2"}},
      {"starts", [](Arguments& a) { a.zero(q_starts, DType::i64, {3}); }, {"q_starts", "[3]", "2"}},
  };
  for (const Row& row : rows) expect_refused(dense(), row);
  const Row packed_rows[] = {
      {"v total",
       [](Arguments& a) {
         reshape(a, v, {8, 2, 6});
       },
       {"v", "[8, 2, 6]", "9"}},
      {"lse padded",
       [](Arguments& a) {
         reshape(a, lse, {4, 6});
       },
       {"lse", "[4, 6]", "[4, 5]"}},
      {"cu of 4 and 3", [](Arguments& a) { reshape(a, cu_seqlens_k, {4}); }, {"cu_seqlens_k", "[4]", "[3]"}},
      {"cu of 0", [](Arguments& a) { reshape(a, cu_seqlens_q, {0}); }, {"cu_seqlens_q", "[0]"}},
      {"max_seqlen_q -1", [](Arguments& a) { a.args.max_seqlen_q = -1; }, {"max_seqlen_q", "-1"}},
      {"max_seqlen_k -7", [](Arguments& a) { a.args.max_seqlen_k = -7; }, {"max_seqlen_k", "-7"}},
  };
  for (const Row& row : packed_rows) expect_refused(packed(), row);
}

TEST(BadInput, Numbers) {
  const auto number = [](uint64_t bit, auto field, auto value) {
    return [=](Arguments& a) {
      a.args.has |= bit;
      a.args.*field = value;
    };
  };
  using Args = rapt_sdpa_args;
  const double not_a_number = std::numeric_limits<double>::quiet_NaN();
  const Row rows[] = {
      {"scale NaN", number(RAPT_HAS_SCALE, &Args::softmax_scale, not_a_number), {"softmax_scale", "nan"}},
      {"scale inf", number(RAPT_HAS_SCALE, &Args::softmax_scale, infinity), {"softmax_scale", "inf"}},
      {"scale beyond float", number(RAPT_HAS_SCALE, &Args::softmax_scale, 1e300), {"softmax_scale", "1e+300"}},
      {"softcap 0", number(RAPT_HAS_SOFTCAP, &Args::softcap, 0.0), {"softcap", "0"}},
      {"softcap -1", number(RAPT_HAS_SOFTCAP, &Args::softcap, -1.0), {"softcap", "-1"}},
      {"softcap NaN", number(RAPT_HAS_SOFTCAP, &Args::softcap, not_a_number), {"softcap", "nan"}},
      {"softcap inf", number(RAPT_HAS_SOFTCAP, &Args::softcap, infinity), {"softcap", "inf"}},
      {"softcap that is 0 as a float", number(RAPT_HAS_SOFTCAP, &Args::softcap, 1e-300), {"softcap"}},
      {"window_left -2", number(RAPT_HAS_WINDOW, &Args::window_left, int64_t{-2}), {"window_left", "-2"}},
      {"window_right -9", number(RAPT_HAS_WINDOW, &Args::window_right, int64_t{-9}), {"window_right", "-9"}},
      {"splits 0", number(RAPT_HAS_SPLITS, &Args::splits, int64_t{0}), {"splits", "0"}},
      {"splits -3", number(RAPT_HAS_SPLITS, &Args::splits, int64_t{-3}), {"splits", "-3"}},
      {"max_seqlen_q without cu",
       number(RAPT_HAS_MAX_SEQLEN_Q, &Args::max_seqlen_q, int64_t{3}),
       {"max_seqlen_q", "3"}},
      {"max_seqlen_k without cu",
       number(RAPT_HAS_MAX_SEQLEN_K, &Args::max_seqlen_k, int64_t{5}),
       {"max_seqlen_k", "5"}},
      {"pv 4", [](Arguments& a) { a.args.pv = 4; }, {"pv", "4"}},
      {"acc -1", [](Arguments& a) { a.args.acc = -1; }, {"acc", "-1"}},
      {"splits with invariant",
       [](Arguments& a) {
         a.args.has |= RAPT_HAS_SPLITS;
         a.args.splits = 2;
         a.args.flags |= RAPT_INVARIANT;
       },
       {"splits", "2", "invariant"}},
      {"fp8 products of an f16 v", [](Arguments& a) { a.args.pv = RAPT_PV_FP8; }, {"pv", "fp8", "f16"}},
      {"reserved", [](Arguments& a) { a.args.reserved = 17; }, {"reserved", "17"}},
  };
  for (const Row& row : rows) expect_refused(dense(), row);
}

TEST(BadInput, BitsAndSizes) {
  const Row rows[] = {
      {"has", [](Arguments& a) { a.args.has |= UINT64_C(1) << 40; }, {"has", "1099511627776"}},
      {"next has bit", [](Arguments& a) { a.args.has |= known_has + 1; }, {"has", std::to_string(known_has + 1)}},
      {"flags", [](Arguments& a) { a.args.flags |= UINT64_C(1) << 33; }, {"flags", "8589934592"}},
      {"next flag", [](Arguments& a) { a.args.flags |= RAPT_CHECK_CONTENTS << 1; }, {"flags", "32"}},
      {"both causal flags",
       [](Arguments& a) { a.args.flags |= RAPT_CAUSAL | RAPT_CAUSAL_TOP_LEFT; },
       {"RAPT_CAUSAL", "RAPT_CAUSAL_TOP_LEFT"}},
      {"struct_size 0",
       [](Arguments& a) { a.last = [](Arguments& x) { x.args.struct_size = 0; }; },
       {"struct_size", "0"}},
      {"struct_size short",
       [](Arguments& a) { a.last = [](Arguments& x) { x.args.struct_size = sizeof(x.args) - 1; }; },
       {"struct_size", std::to_string(sizeof(rapt_sdpa_args) - 1)}},
  };
  for (const Row& row : rows) expect_refused(dense(), row);
  // A later, longer struct is accepted if the bytes that this build does not know are zero.
  Arguments a = dense();
  struct Longer {
    rapt_sdpa_args args;
    unsigned char tail[24];
  } longer{*a.build(), {}};
  longer.args.struct_size = sizeof(longer);
  EXPECT_EQ(rapt_sdpa(nullptr, &longer.args, nullptr), RAPT_OK) << rapt_last_error();
  longer.tail[20] = 1;
  EXPECT_EQ(rapt_sdpa(nullptr, &longer.args, nullptr), RAPT_ERROR_INVALID_ARGUMENT);
  expect_words(rapt_last_error(), {"struct_size", std::to_string(sizeof(longer))});
}

TEST(BadInput, PartialStates) {
  const Row rows[] = {
      {"out f16", [](Arguments& a) { a.args.flags |= RAPT_PARTIAL; }, {"out", "f16", "f32"}},
      {"no lse",
       [](Arguments& a) {
         a.args.flags |= RAPT_PARTIAL;
         retype(a, out, DType::f32);
         a[lse] = {};
       },
       {"lse"}},
      {"sinks",
       [](Arguments& a) {
         a.args.flags |= RAPT_PARTIAL;
         retype(a, out, DType::f32);
         a.zero(sinks, DType::f32, {4});
       },
       {"sinks"}},
  };
  for (const Row& row : rows) expect_refused(dense(), row);
}

TEST(BadInput, Starts) {
  const Row rows[] = {
      {"scalar and tensor",
       [](Arguments& a) {
         a.args.has |= RAPT_HAS_Q_START;
         a.zero(q_starts, DType::i64, {2});
       },
       {"q_start"}},
      {"top-left",
       [](Arguments& a) {
         a.args.flags |= RAPT_CAUSAL_TOP_LEFT;
         a.args.has |= RAPT_HAS_K_START;
       },
       {"causal_top_left", "k_start"}},
  };
  for (const Row& row : rows) expect_refused(dense(), row);
}

TEST(BadInput, Contents) {
  const auto set = [](Slot slot, int64_t at, double value) { return [=](Arguments& a) { put(a[slot], {at}, value); }; };
  const Row packed_rows[] = {
      {"cu_q[0] = 1", set(cu_seqlens_q, 0, 1), {"cu_seqlens_q", "1"}, true},
      {"cu_k falls", set(cu_seqlens_k, 1, 10), {"cu_seqlens_k", "10", "9"}, true},
      {"cu_q negative", set(cu_seqlens_q, 1, -2), {"cu_seqlens_q", "-2"}, true},
      {"cu_q past the tensor", set(cu_seqlens_q, 2, 6), {"cu_seqlens_q", "6", "5"}, true},
      {"cu_k past the tensor", set(cu_seqlens_k, 2, 10), {"cu_seqlens_k", "10", "9"}, true},
      {"queries beyond max_seqlen_q",
       [](Arguments& a) { a.args.max_seqlen_q = 2; },
       {"cu_seqlens_q", "sequence 0", "3 rows", "max_seqlen_q = 2"},
       true},
      {"keys beyond max_seqlen_k",
       [](Arguments& a) { a.args.max_seqlen_k = 4; },
       {"cu_seqlens_k", "sequence 0", "5 rows", "max_seqlen_k = 4"},
       true},
      {"used queries above their sequence",
       [](Arguments& a) {
         a.zero(seqused_q, DType::i32, {2});
         put(a[seqused_q], {1}, 3);
       },
       {"seqused_q[1]", "3", "2"},
       true},
      {"a length beyond 32 bits",
       [](Arguments& a) {
         a.zero(cu_seqlens_k, DType::i64, {3});
         put(a[cu_seqlens_k], {2}, 4294967305.0);
       },
       {"cu_seqlens_k[2]", "4294967305", "32 bits"},
       true},
      {"seqused above its sequence",
       [](Arguments& a) {
         a.zero(seqused_k, DType::i32, {2});
         put(a[seqused_k], {1}, 5);
       },
       {"seqused_k", "5", "4"},
       true},
  };
  for (const Row& row : packed_rows) expect_refused(packed(), row);
  const auto used = [](double value) {
    return [value](Arguments& a) {
      a.zero(seqused_k, DType::i32, {2});
      put(a[seqused_k], {1}, value);
    };
  };
  const Row rows[] = {
      {"seqused 8 of 7", used(8), {"seqused_k", "8", "7"}, true},
      {"seqused -1", used(-1), {"seqused_k", "-1"}, true},
      {"mask value 2",
       [](Arguments& a) {
         a.zero(mask, DType::u8, {2, 1, 3, 7});
         put(a[mask], {1, 0, 2, 4}, 2);
       },
       {"mask", "0 and 1"},
       true},
      {"mask value 255",
       [](Arguments& a) {
         a.zero(mask, DType::u8, {7});
         put(a[mask], {0}, 255);
       },
       {"mask", "0 and 1"},
       true},
  };
  for (const Row& row : rows) expect_refused(dense(), row);
}

TEST(BadInput, Overlaps) {
  const auto share = [](Slot a, Slot b) {  // places slot a in b's memory
    return [=](Arguments& x) {
      x[a].storage = x[b].storage;
      x[a].offset = x[b].offset;
    };
  };
  const auto stride = [](Slot slot, size_t dim, int64_t value) {
    return [=](Arguments& a) { a[slot].strides[dim] = value; };
  };
  const Row rows[] = {
      {"out stride 0", stride(out, 1, 0), {"out", "0"}},
      {"out rows overlap", stride(out, 2, 5), {"out", "5"}},
      {"lse stride 0", stride(lse, 2, 0), {"lse", "0"}},
      {"out is q", share(out, q), {"out", "q"}},
      {"out is k", share(out, k), {"out", "k"}},
      {"out is v", share(out, v), {"out", "v"}},
      {"lse is out", share(lse, out), {"out", "lse"}},
      {"lse is q", share(lse, q), {"lse", "q"}},
      {"out is bias",
       [&](Arguments& a) {
         a.zero(bias, DType::f32, {2, 4, 3, 7});
         share(out, bias)(a);
       },
       {"out", "bias"}},
      {"lse is mask",
       [&](Arguments& a) {
         a.zero(mask, DType::u8, {2, 4, 3, 7});
         share(lse, mask)(a);
       },
       {"lse", "mask"}},
  };
  for (const Row& row : rows) expect_refused(dense(), row);
  // q and out are slices of one buffer, which alternate for each token. They interleave, but share no byte.
  Arguments a = dense();
  HostTensor fused = make_tensor(DType::f16, {2, 4, 3, 14});
  a[q] = slice(fused, 3, 0, 8);
  a[out] = slice(fused, 3, 8, 14);
  EXPECT_EQ(rapt_sdpa(nullptr, a.build(), nullptr), RAPT_OK) << rapt_last_error();
  a[out] = slice(fused, 3, 7, 13);
  EXPECT_EQ(rapt_sdpa(nullptr, a.build(), nullptr), RAPT_ERROR_INVALID_ARGUMENT);
}

TEST(BadInput, Devices) {
  const Row rows[] = {
      {"v elsewhere",
       [](Arguments& a) {
         a.devices[v] = {RAPT_DEVICE_CUDA, 0};
       },
       {"v", "cuda:0", "cpu"}},
      {"out elsewhere",
       [](Arguments& a) {
         a.devices[out] = {RAPT_DEVICE_CUDA, 1};
       },
       {"out", "cuda:1", "cpu"}},
      {"lse elsewhere",
       [](Arguments& a) {
         a.devices[lse] = {RAPT_DEVICE_CUDA, 0};
       },
       {"lse", "cuda:0"}},
      {"no device type",
       [](Arguments& a) {
         a.devices[q] = {77, 0};
       },
       {"q", "77"}},
  };
  for (const Row& row : rows) expect_refused(dense(), row);
  // All tensors are on a GPU that does not exist. Its index is larger than on any machine, so the test also works on
  // machines with GPUs.
  const Row all_cuda{"all on a GPU that is not there",
                     [](Arguments& a) {
                       a.devices.fill({RAPT_DEVICE_CUDA, 1000});
                     },
                     {cuda::find_driver() ? "cuda:1000" : "NVIDIA driver"},
                     false,
                     cuda::find_driver() ? RAPT_ERROR_UNSUPPORTED : RAPT_ERROR_ENVIRONMENT};
  expect_refused(dense(), all_cuda);
  Arguments a = dense();
  int not_a_stream = 0;
  EXPECT_EQ(rapt_sdpa(nullptr, a.build(), &not_a_stream), RAPT_ERROR_INVALID_ARGUMENT);
  expect_words(rapt_last_error(), {"stream"});
}

TEST(BadInput, Scales) {
  const auto quantised = [] {
    Arguments a = dense();
    retype(a, v, DType::e4m3);
    retype(a, k, DType::e4m3);
    return a;
  };
  const Row rows[] = {
      {"kind without tensor", [](Arguments& a) { a.args.v_scales = RAPT_SCALE_HEAD; }, {"v_scales", "v_descale"}},
      {"tensor without kind", [](Arguments& a) { a.zero(k_descale, DType::f32, {1}); }, {"k_descale", "k_scales"}},
      {"kind 9", [](Arguments& a) { a.args.q_scales = 9; }, {"q_scales", "9"}},
      {"tensor scale of 2",
       [](Arguments& a) {
         a.zero(k_descale, DType::f32, {2});
         a.args.k_scales = RAPT_SCALE_TENSOR;
       },
       {"k_descale", "[2]"}},
      {"q heads for k",
       [](Arguments& a) {
         a.zero(k_descale, DType::f32, {2, 4});
         a.args.k_scales = RAPT_SCALE_HEAD;
       },
       {"k_descale", "[2, 4]", "[2, 2]"}},
      {"one block too many",
       [](Arguments& a) {
         a.zero(v_descale, DType::f32, {2, 2, 2});
         a.args.v_scales = RAPT_SCALE_BLOCK64;
       },
       {"v_descale", "[2, 2, 2]", "[2, 2, 1]"}},
      {"channel for k",
       [](Arguments& a) {
         a.zero(k_descale, DType::f32, {2, 2, 8});
         a.args.k_scales = RAPT_SCALE_CHANNEL;
       },
       {"k_scales", "channel"}},
      {"f16 descale",
       [](Arguments& a) {
         a.zero(v_descale, DType::f16, {1});
         a.args.v_scales = RAPT_SCALE_TENSOR;
       },
       {"v_descale", "f16"}},
      {"scales of f16 q",
       [](Arguments& a) {
         a.zero(q_descale, DType::f32, {1});
         a.args.q_scales = RAPT_SCALE_TENSOR;
       },
       {"q_scales", "f16"}},
      {"mean of q's heads",
       [](Arguments& a) {
         a.zero(k_mean, DType::f32, {2, 4, 8});
       },
       {"k_mean", "[2, 4, 8]"}},
      {"f16 mean",
       [](Arguments& a) {
         a.zero(k_mean, DType::f16, {2, 2, 8});
       },
       {"k_mean", "f16"}},
      {"mean of f16 k",
       [](Arguments& a) {
         retype(a, k, DType::f16);
         a.zero(k_mean, DType::f32, {2, 2, 8});
       },
       {"k_mean", "f16"}},
  };
  for (const Row& row : rows) expect_refused(quantised(), row);
}

namespace {

// The scales of a call: all are 1 except one value.
Arguments with_scales(Arguments a, Slot slot, int32_t kind, const std::vector<int64_t>& shape,
                      const std::vector<int64_t>& at, double value) {
  for (Slot s : {q, k, v}) retype(a, s, DType::e4m3);
  a.zero(slot, DType::f32, shape);
  fill(a[slot], 1);
  if (slot != k_mean)
    (slot == q_descale ? a.args.q_scales : slot == k_descale ? a.args.k_scales : a.args.v_scales) = kind;
  put(a[slot], at, value);
  return a;
}

struct Scales {
  const char* name;
  Slot slot;
  int32_t kind;
  std::vector<int64_t> shape, at;
  const char* words;
};

}  // namespace

// Wrong scales: the sentence has argument, index and value; nothing is written.
TEST(BadInput, ScaleContents) {
  const Scales of_dense[] = {
      {"tensor", q_descale, RAPT_SCALE_TENSOR, {1}, {0}, "q_descale[0]"},
      {"scalar", k_descale, RAPT_SCALE_TENSOR, {}, {}, "k_descale = "},
      {"head", k_descale, RAPT_SCALE_HEAD, {2, 2}, {1, 0}, "k_descale[1, 0]"},
      {"token of q", q_descale, RAPT_SCALE_TOKEN, {2, 4, 3}, {1, 3, 2}, "q_descale[1, 3, 2]"},
      {"token of v", v_descale, RAPT_SCALE_TOKEN, {2, 2, 7}, {0, 1, 6}, "v_descale[0, 1, 6]"},
      {"block64", k_descale, RAPT_SCALE_BLOCK64, {2, 2, 1}, {1, 1, 0}, "k_descale[1, 1, 0]"},
      {"block128", q_descale, RAPT_SCALE_BLOCK128, {2, 4, 1}, {0, 2, 0}, "q_descale[0, 2, 0]"},
      {"channel", v_descale, RAPT_SCALE_CHANNEL, {2, 2, 6}, {1, 0, 5}, "v_descale[1, 0, 5]"},
      {"mean", k_mean, 0, {2, 2, 8}, {1, 1, 7}, "k_mean[1, 1, 7]"},
  };
  const Scales of_packed[] = {
      {"packed token", v_descale, RAPT_SCALE_TOKEN, {2, 9}, {1, 8}, "v_descale[1, 8]"},
      {"packed block", k_descale, RAPT_SCALE_BLOCK64, {2, 2, 1}, {1, 1, 0}, "k_descale[1, 1, 0]"},
      {"packed mean", k_mean, 0, {2, 2, 8}, {0, 1, 3}, "k_mean[0, 1, 3]"},
  };
  const auto expect_bad = [](const Arguments& call, const Scales& s) {
    for (const auto& [value, text] : {std::pair{nan, "nan"}, {infinity, "inf"}, {-infinity, "-inf"}, {-0.5, "-0.5"}}) {
      if (s.slot == k_mean && std::isfinite(value)) continue;  // a mean is allowed to be negative
      expect_refused(with_scales(call, s.slot, s.kind, s.shape, s.at, value),
                     {s.name, [](Arguments&) {}, {s.words, text, "finite"}, true});
    }
    Arguments zero = with_scales(call, s.slot, s.kind, s.shape, s.at, 0);
    EXPECT_EQ(rapt_sdpa(nullptr, zero.build(), nullptr), RAPT_OK) << s.name << ": " << rapt_last_error();
  };
  for (const Scales& s : of_dense) expect_bad(dense(), s);
  for (const Scales& s : of_packed) expect_bad(packed(), s);
}

// Unused values can be anything: for rows after the last sequence, keys after seqused_k, and blocks after a sequence.
TEST(BadInput, UnusedScales) {
  Arguments past_end = packed();
  put(past_end[cu_seqlens_k], {2}, 8);
  Arguments unused = dense();
  unused.zero(seqused_k, DType::i32, {2});
  put(unused[seqused_k], {0}, 5);
  Arguments queries = dense();
  queries.zero(seqused_q, DType::i32, {2});
  put(queries[seqused_q], {0}, 3), put(queries[seqused_q], {1}, 1);
  Arguments blocks = packed();
  blocks.args.max_seqlen_k = 65;
  const std::tuple<Arguments, Slot, int32_t, std::vector<int64_t>, std::vector<int64_t>> calls[] = {
      {past_end, v_descale, RAPT_SCALE_TOKEN, {2, 9}, {1, 8}},
      {unused, k_descale, RAPT_SCALE_TOKEN, {2, 2, 7}, {0, 1, 5}},
      {unused, k_descale, RAPT_SCALE_HEAD, {2, 2}, {1, 1}},  // the scale of a sequence without keys
      {unused, k_mean, 0, {2, 2, 8}, {1, 0, 2}},
      {queries, q_descale, RAPT_SCALE_TOKEN, {2, 4, 3}, {1, 3, 1}},
      {blocks, k_descale, RAPT_SCALE_BLOCK64, {2, 2, 2}, {0, 1, 1}},
  };
  for (const auto& [call, slot, kind, shape, at] : calls) {
    Arguments a = with_scales(call, slot, kind, shape, at, nan);
    EXPECT_EQ(rapt_sdpa(nullptr, a.build(), nullptr), RAPT_OK) << rapt_last_error();
    each_index(a[out].shape, [&](const auto& i) { EXPECT_TRUE(std::isfinite(a[out].at(i))); });
  }
}

TEST(BadInput, NotYetSupported) {
  static rapt_score_mod mod{};
  mod.struct_size = sizeof(mod);
  mod.host = [](float score, int64_t, int64_t, int64_t, int64_t, const void*) { return score; };
  const Row rows[] = {
      {"score_mod", [](Arguments& a) { a.args.score_mod = &mod; }, {"score_mod"}, false, RAPT_ERROR_UNSUPPORTED},
  };
  for (const Row& row : rows) expect_refused(dense(), row);
  EXPECT_EQ(rapt_load_pack(nullptr, "no-such.pack"), RAPT_ERROR_ENVIRONMENT);
  expect_words(rapt_last_error(), {"no-such.pack"});
}

namespace {

struct QuantizeRow {
  const char* name;
  std::function<void(QuantizeCall&)> change;
  std::vector<std::string> words;
  std::function<void(rapt_quantize_args&)> last = [](rapt_quantize_args&) {};
};

// Expects the call to be refused with these words, and nothing to be written.
void expect_refused(QuantizeCall call, const QuantizeRow& row) {
  SCOPED_TRACE(row.name);
  row.change(call);
  QuantizeArgs args(call);
  row.last(args.args);
  EXPECT_EQ(rapt_quantize(nullptr, &args.args, nullptr), RAPT_ERROR_INVALID_ARGUMENT);
  expect_words(rapt_last_error(), row.words);
  each_index(call.output.shape, [&](const auto& at) { EXPECT_TRUE(is_poisoned(call.output, at)); });
}

QuantizeCall quantize_dense() {
  QuantizeCall call;
  call.input = make_tensor(DType::f16, {2, 3, 70, 16});
  call.scales = RAPT_SCALE_HEAD;
  call.poison(DType::e4m3);
  return call;
}

QuantizeCall quantize_packed() {
  QuantizeCall call;
  call.input = make_tensor(DType::f16, {20, 3, 16});
  call.scales = RAPT_SCALE_TOKEN;
  call.cu_seqlens = make_tensor(DType::i32, {3});
  put(call.cu_seqlens, {1}, 7), put(call.cu_seqlens, {2}, 15);
  call.max_seqlen = 8;
  call.poison(DType::e4m3);
  return call;
}

}  // namespace

TEST(BadInput, Quantize) {
  static const rapt_tensor not_there{nullptr, {RAPT_DEVICE_CPU, 0}, RAPT_F16, 4, nullptr, nullptr};
  const auto keep = [](QuantizeCall&) {};
  const QuantizeRow rows[] = {
      {"struct_size", keep, {"struct_size", "8"}, [](rapt_quantize_args& a) { a.struct_size = 8; }},
      {"has", keep, {"has", "4"}, [](rapt_quantize_args& a) { a.has = 4; }},
      {"flags", keep, {"flags", "16"}, [](rapt_quantize_args& a) { a.flags = 16; }},
      {"reserved", keep, {"reserved", "3"}, [](rapt_quantize_args& a) { a.reserved = 3; }},
      {"no kind", keep, {"scales", "0"}, [](rapt_quantize_args& a) { a.scales = RAPT_SCALE_NONE; }},
      {"kind 7", keep, {"scales", "7"}, [](rapt_quantize_args& a) { a.scales = 7; }},
      {"no input", keep, {"input", "NULL"}, [](rapt_quantize_args& a) { a.input = nullptr; }},
      {"no output", keep, {"output", "NULL"}, [](rapt_quantize_args& a) { a.output = nullptr; }},
      {"no descale", keep, {"descale", "NULL"}, [](rapt_quantize_args& a) { a.descale = nullptr; }},
      {"no shape", keep, {"input", "shape"}, [](rapt_quantize_args& a) { a.input = &not_there; }},
      {"FP8 input", [](QuantizeCall& c) { c.input = make_tensor(DType::e4m3, c.input.shape); }, {"input", "e4m3"}},
      {"f16 output", [](QuantizeCall& c) { c.output = make_poisoned(DType::f16, c.output.shape); }, {"output", "f16"}},
      {"packed without lists",
       [](QuantizeCall& c) {
         c.input = make_tensor(DType::f16, {8, 3, 16});
       },
       {"input", "[8, 3, 16]"}},
      {"other shape",
       [](QuantizeCall& c) {
         c.output = make_poisoned(DType::e4m3, {2, 3, 16, 70});
       },
       {"output", "[2, 3, 16, 70]", "[2, 3, 70, 16]"}},
      {"descale for a token",
       [](QuantizeCall& c) {
         c.descale = make_poisoned(DType::f32, {2, 3, 70});
       },
       {"descale", "[2, 3, 70]", "[batch, heads]"}},
      {"f16 descale",
       [](QuantizeCall& c) {
         c.descale = make_poisoned(DType::f16, {2, 3});
       },
       {"descale", "f16"}},
      {"mean unasked",
       [](QuantizeCall& c) {
         c.mean = make_poisoned(DType::f32, {2, 3, 16});
       },
       {"mean", "RAPT_QUANTIZE_SMOOTH"}},
      {"no mean", [](QuantizeCall& c) { c.flags = RAPT_QUANTIZE_SMOOTH; }, {"mean", "NULL"}},
      {"mean of heads",
       [](QuantizeCall& c) {
         c.flags = RAPT_QUANTIZE_SMOOTH;
         c.mean = make_poisoned(DType::f32, {2, 3});
       },
       {"mean", "[2, 3]", "[2, 3, 16]"}},
      {"percentile 0", [](QuantizeCall& c) { c.percentile = 0; }, {"percentile", "0"}},
      {"percentile 101", [](QuantizeCall& c) { c.percentile = 101; }, {"percentile", "101"}},
      {"percentile NaN", [](QuantizeCall& c) { c.percentile = nan; }, {"percentile", "nan"}},
      {"percentile of nothing",
       [](QuantizeCall& c) {
         c.percentile = 99;
         c.flags = RAPT_QUANTIZE_SUPPLIED;
       },
       {"percentile", "99", "RAPT_QUANTIZE_SUPPLIED"}},
      {"max_seqlen of dense", [](QuantizeCall& c) { c.max_seqlen = 70; }, {"max_seqlen", "70"}},
      {"output overlaps itself", [](QuantizeCall& c) { c.output.strides[2] = 0; }, {"output.strides"}},
      {"output in input",
       [](QuantizeCall& c) {
         c.output.storage = c.input.storage;
         c.output.offset = 0;
         std::fill_n(c.input.storage.get(), c.input.size() * 2, poison_byte);
       },
       {"output", "input"}},
      {"supplied 0",
       [](QuantizeCall& c) {
         c.flags = RAPT_QUANTIZE_SUPPLIED;
         fill(c.descale, 1);
         put(c.descale, {1, 2}, 0);
       },
       {"descale[1, 2]", "0"}},
      {"supplied infinity",
       [](QuantizeCall& c) {
         c.flags = RAPT_QUANTIZE_SUPPLIED;
         fill(c.descale, 1);
         put(c.descale, {0, 1}, infinity);
       },
       {"descale[0, 1]", "inf"}},
      {"another device",
       keep,
       {"output", "cuda:0", "cpu"},
       [](rapt_quantize_args& a) {
         static rapt_tensor elsewhere;
         elsewhere = a.output != nullptr ? *a.output : not_there;
         elsewhere.device = {RAPT_DEVICE_CUDA, 0};
         a.output = &elsewhere;
       }},
  };
  for (const QuantizeRow& row : rows) expect_refused(quantize_dense(), row);
  const QuantizeRow packed_rows[] = {
      {"no max_seqlen", [](QuantizeCall& c) { c.max_seqlen.reset(); }, {"max_seqlen"}},
      {"max_seqlen < 0", [](QuantizeCall& c) { c.max_seqlen = -1; }, {"max_seqlen", "-1"}},
      {"sequence too long", [](QuantizeCall& c) { c.max_seqlen = 7; }, {"cu_seqlens[2]", "8", "max_seqlen = 7"}},
      {"not from 0", [](QuantizeCall& c) { put(c.cu_seqlens, {0}, 1); }, {"cu_seqlens[0]", "1"}},
      {"falling", [](QuantizeCall& c) { put(c.cu_seqlens, {2}, 5); }, {"cu_seqlens[2]", "5", "7"}},
      {"past the end",
       [](QuantizeCall& c) {
         put(c.cu_seqlens, {1}, 17), put(c.cu_seqlens, {2}, 21);
         c.max_seqlen = 17;
       },
       {"cu_seqlens[2]", "21", "20 rows"}},
      {"f32 list", [](QuantizeCall& c) { c.cu_seqlens = make_tensor(DType::f32, {3}); }, {"cu_seqlens", "f32"}},
      {"supplied NaN",
       [](QuantizeCall& c) {
         c.flags = RAPT_QUANTIZE_SUPPLIED;
         fill(c.descale, 1);
         put(c.descale, {2, 14}, nan);
       },
       {"descale[2, 14]", "nan"}},
  };
  for (const QuantizeRow& row : packed_rows) expect_refused(quantize_packed(), row);

  // Values that no sequence uses can be anything.
  QuantizeCall call = quantize_packed();
  call.flags = RAPT_QUANTIZE_SUPPLIED;
  fill(call.descale, 1);
  put(call.descale, {2, 15}, nan);
  quantize_on_cpu(call);
  int not_a_stream = 0;
  const QuantizeArgs args(call);
  EXPECT_EQ(rapt_quantize(nullptr, &args.args, &not_a_stream), RAPT_ERROR_INVALID_ARGUMENT);
  expect_words(rapt_last_error(), {"stream"});
}

TEST(BadInput, NullPointers) {
  EXPECT_EQ(rapt_sdpa(nullptr, nullptr, nullptr), RAPT_ERROR_INVALID_ARGUMENT);
  expect_words(rapt_last_error(), {"args", "NULL"});
  EXPECT_EQ(rapt_prepare(nullptr, nullptr, nullptr), RAPT_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(rapt_workspace_size(nullptr, nullptr, nullptr, nullptr), RAPT_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(rapt_explain(nullptr, nullptr, nullptr, 0, nullptr), RAPT_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(rapt_merge(nullptr, nullptr, nullptr), RAPT_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(rapt_quantize(nullptr, nullptr, nullptr), RAPT_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(rapt_load_pack(nullptr, nullptr), RAPT_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(rapt_context_create(nullptr, nullptr), RAPT_ERROR_INVALID_ARGUMENT);
  expect_words(rapt_last_error(), {"context", "NULL"});
  rapt_context_destroy(nullptr);
  Arguments a = dense();
  EXPECT_EQ(rapt_explain(nullptr, a.build(), nullptr, 10, nullptr), RAPT_ERROR_INVALID_ARGUMENT);
  expect_words(rapt_last_error(), {"buffer", "NULL"});
  EXPECT_EQ(rapt_workspace_size(nullptr, a.build(), nullptr, nullptr), RAPT_OK) << rapt_last_error();
}

TEST(BadInput, ContextOptions) {
  rapt_context* context = nullptr;
  rapt_context_options options{};
  EXPECT_EQ(rapt_context_create(&options, &context), RAPT_ERROR_INVALID_ARGUMENT);
  expect_words(rapt_last_error(), {"struct_size"});
  options.struct_size = sizeof(options);
  options.num_threads = -1;
  EXPECT_EQ(rapt_context_create(&options, &context), RAPT_ERROR_INVALID_ARGUMENT);
  expect_words(rapt_last_error(), {"num_threads", "-1"});
  options.num_threads = 0;
  options.reserved = 3;
  EXPECT_EQ(rapt_context_create(&options, &context), RAPT_ERROR_INVALID_ARGUMENT);
  expect_words(rapt_last_error(), {"reserved", "3"});
  EXPECT_EQ(context, nullptr) << "set although the call failed";
}

TEST(BadInput, WorkspaceTooSmall) {
  Arguments a = base();
  a.zero(q, DType::f16, {1, 1, 1, 64});
  a.zero(k, DType::f16, {1, 1, 4096, 64});
  a.zero(v, DType::f16, {1, 1, 4096, 64});
  a.zero(out, DType::f16, {1, 1, 1, 64});
  a.args.has = RAPT_HAS_SPLITS;
  a.args.splits = 8;
  size_t bytes = 0, zero_bytes = 0;
  ASSERT_EQ(rapt_workspace_size(nullptr, a.build(), &bytes, &zero_bytes), RAPT_OK) << rapt_last_error();
  EXPECT_LE(zero_bytes, bytes);
  ASSERT_GT(bytes, 1u) << "eight parts have to be kept somewhere";
  const HostTensor workspace = make_tensor(DType::u8, {static_cast<int64_t>(bytes)});  // aligned to 64 bytes
  a.args.workspace = workspace.data();
  a.args.workspace_bytes = bytes - 1;
  fill(a[out], 7);
  EXPECT_EQ(rapt_sdpa(nullptr, &a.args, nullptr), RAPT_ERROR_INVALID_ARGUMENT);
  expect_words(rapt_last_error(), {"workspace_bytes", std::to_string(bytes - 1), std::to_string(bytes)});
  for (int64_t d = 0; d < 64; ++d) EXPECT_EQ(a[out].at({0, 0, 0, d}), 7.0);
  a.args.workspace_bytes = bytes;
  EXPECT_EQ(rapt_sdpa(nullptr, &a.args, nullptr), RAPT_OK) << rapt_last_error();
  a.args.workspace = workspace.data() + 4;
  EXPECT_EQ(rapt_sdpa(nullptr, &a.args, nullptr), RAPT_ERROR_INVALID_ARGUMENT);
  expect_words(rapt_last_error(), {"workspace", "64"});
  a.args.workspace = nullptr;
  EXPECT_EQ(rapt_sdpa(nullptr, &a.args, nullptr), RAPT_ERROR_INVALID_ARGUMENT) << "a size without a workspace";
}

namespace {

// Two parts [1, 2, 3, 4] merged into f16.
struct Merge {
  HostTensor outs[2], lses[2], sinks, out, lse;
  std::array<rapt_tensor, 7> views{};
  const rapt_tensor *out_list[2], *lse_list[2];
  rapt_merge_args args{};
  std::function<void(Merge&)> last;

  Merge() {
    for (int n = 0; n < 2; ++n) {
      outs[n] = make_tensor(DType::f32, {1, 2, 3, 4});
      lses[n] = make_tensor(DType::f32, {1, 2, 3});
    }
    sinks = make_tensor(DType::f32, {2});
    out = make_tensor(DType::f16, {1, 2, 3, 4});
    lse = make_tensor(DType::f32, {1, 2, 3});
  }
  const rapt_merge_args* build() {
    const HostTensor* const tensors[] = {&outs[0], &outs[1], &lses[0], &lses[1], &sinks, &out, &lse};
    for (size_t n = 0; n < 7; ++n) {
      const HostTensor& t = *tensors[n];
      views[n] = {
          t.data(),       {RAPT_DEVICE_CPU, 0}, static_cast<int32_t>(t.dtype), static_cast<int32_t>(t.shape.size()),
          t.shape.data(), t.strides.data()};
    }
    out_list[0] = &views[0], out_list[1] = &views[1], lse_list[0] = &views[2], lse_list[1] = &views[3];
    args = {sizeof(args), 0, 0, 2, out_list, lse_list, &views[4], &views[5], &views[6]};
    if (last) last(*this);
    return &args;
  }
};

struct MergeRow {
  const char* name;
  std::function<void(Merge&)> change;
  std::vector<std::string> words;
};

}  // namespace

TEST(BadInput, Merge) {
  Merge fine;
  ASSERT_EQ(rapt_merge(nullptr, fine.build(), nullptr), RAPT_OK) << rapt_last_error();
  const auto late = [](auto change) { return [change](Merge& m) { m.last = change; }; };
  const MergeRow rows[] = {
      {"count 0", late([](Merge& m) { m.args.count = 0; }), {"count", "0"}},
      {"count -1", late([](Merge& m) { m.args.count = -1; }), {"count", "-1"}},
      {"no outs", late([](Merge& m) { m.args.outs = nullptr; }), {"outs", "NULL"}},
      {"no lses", late([](Merge& m) { m.args.lses = nullptr; }), {"lses", "NULL"}},
      {"a part missing", late([](Merge& m) { m.out_list[1] = nullptr; }), {"outs[1]", "NULL"}},
      {"an lse missing", late([](Merge& m) { m.lse_list[0] = nullptr; }), {"lses[0]", "NULL"}},
      {"no out", late([](Merge& m) { m.args.out = nullptr; }), {"out", "NULL"}},
      {"flags", late([](Merge& m) { m.args.flags = 2; }), {"flags", "2"}},
      {"has", late([](Merge& m) { m.args.has = 4; }), {"has", "4"}},
      {"struct_size", late([](Merge& m) { m.args.struct_size = 8; }), {"struct_size", "8"}},
      {"f16 part",
       [](Merge& m) {
         m.outs[0] = make_tensor(DType::f16, {1, 2, 3, 4});
       },
       {"outs[0]", "f16"}},
      {"part of another shape",
       [](Merge& m) {
         m.outs[1] = make_tensor(DType::f32, {1, 2, 4, 4});
       },
       {"outs[1]", "[1, 2, 4, 4]"}},
      {"lse of another shape",
       [](Merge& m) {
         m.lses[1] = make_tensor(DType::f32, {1, 2, 4});
       },
       {"lses[1]", "[1, 2, 4]"}},
      {"sinks", [](Merge& m) { m.sinks = make_tensor(DType::f32, {3}); }, {"sinks", "[3]"}},
      {"out e4m3",
       [](Merge& m) {
         m.out = make_tensor(DType::e4m3, {1, 2, 3, 4});
       },
       {"out", "e4m3"}},
      {"out is a part", [](Merge& m) { m.out = m.outs[0]; }, {"out", "outs[0]"}},
      {"lse is a part's", [](Merge& m) { m.lse = m.lses[1]; }, {"lse", "lses[1]"}},
  };
  for (const MergeRow& row : rows) {
    SCOPED_TRACE(row.name);
    Merge merge;
    row.change(merge);
    fill(merge.out, 3);
    EXPECT_EQ(rapt_merge(nullptr, merge.build(), nullptr), RAPT_ERROR_INVALID_ARGUMENT) << rapt_last_error();
    expect_words(rapt_last_error(), row.words);
    each_index(merge.out.shape, [&](const auto& at) { EXPECT_EQ(merge.out.at(at), 3.0); });
  }
}

}  // namespace rapt::test
