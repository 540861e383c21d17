// Wrong calls on a paged cache. CPU tensors and GPU tensors must give the same sentence, and nothing is written or
// launched. GPU tensors are those of the stand-in driver (tests/fake_cuda), and the calls have check_contents.
// bad_input_test.cpp and kv_append_test.cpp have more wrong calls on the CPU, and api_test.cpp has those of C++.
#include <deque>

#include "check/device_tensors.h"
#include "cuda/cuda.h"
#include "fake_driver.h"
#include "placed_append.h"
#include "placed_call.h"
#include "stand_in.h"

namespace rapt::test {
namespace {

// Tensors that a mistake replaces.
using Replaced = std::deque<rapt_tensor>;
rapt_tensor& replace(const rapt_tensor*& tensor, Replaced& replaced) {
  replaced.push_back(*tensor);
  tensor = &replaced.back();
  return replaced.back();
}

// An element of a list or table. The memory of the stand-in GPU is host memory, too.
int32_t& entry(const rapt_tensor* tensor, int64_t i, int64_t j = 0) {
  const int64_t *s = tensor->strides, columns = tensor->rank == 2 ? tensor->shape[1] : 1;
  const int64_t at = s != nullptr ? i * s[0] + (tensor->rank == 2 ? j * s[1] : 0) : i * columns + j;
  return static_cast<int32_t*>(tensor->data)[at];
}

template <class Args>
struct Mistake {
  void (*make)(Args& args, Replaced& replaced);
  std::string sentence;
};

// ---- sdpa: two sequences with 40 and 5 keys in pages of 16; a row of the table has 4 pages, and the cache has 7.

constexpr const char* paged_line = "f16 b2 h4:2 q3 k40 d8 page=16 seqused=40,5 lse";
constexpr int64_t wider_pages[] = {7, 2, 32, 8}, one_dim[] = {8};

const Mistake<rapt_sdpa_args> sdpa_mistakes[] = {
    {[](auto& a, auto&) { a.has |= RAPT_HAS_MAX_SEQLEN_K, a.max_seqlen_k = 65; },
     "max_seqlen_k = 65: must be at most 64, because a row of block_table has 4 pages of 16 keys"},
    {[](auto& a, auto&) { entry(a.block_table, 0, 2) = 7; },
     "block_table[0, 2] = 7: must be a page of k, from 0 to 6, because sequence 0 has 40 keys"},
    {[](auto& a, auto&) { entry(a.block_table, 1, 0) = -1; },
     "block_table[1, 0] = -1: must be a page of k, from 0 to 6, because sequence 1 has 5 keys"},
    {[](auto& a, auto&) { entry(a.seqused_k, 0) = 65; },
     "seqused_k[0] = 65: must be between 0 and the sequence's keys, 40"},
    {[](auto& a, auto& r) { replace(a.block_table, r).dtype = RAPT_I64; }, "block_table.dtype = i64: must be i32"},
    {[](auto& a, auto& r) { replace(a.block_table, r).rank = 1, r.back().shape = one_dim; },
     "block_table.rank = 1 (shape [8]): must be 2, [batch, pages]"},
    {[](auto& a, auto& r) { replace(a.v, r).shape = wider_pages; },
     "v.shape = [7, 2, 32, 8]: must be [num_pages, heads_k, page_size, head_dim_v] = [7, 2, 16, 8]; page_size is that "
     "of k"},
};

// Expects the call on tensors in host memory to be refused. Returns the sentence.
std::string refused_on_cpu(const Mistake<rapt_sdpa_args>& mistake) {
  Call call = make(paged_line);
  call.out = check::make_outputs(call.problem);
  const std::vector<unsigned char> out = bits(call.out.out), lse = bits(call.out.lse);
  check::SdpaCall host(call.problem, call.in, call.out);
  Replaced replaced;
  mistake.make(host.args, replaced);
  EXPECT_EQ(rapt_sdpa(nullptr, &host.args, nullptr), RAPT_ERROR_INVALID_ARGUMENT);
  const std::string sentence = rapt_last_error();
  EXPECT_EQ(bits(call.out.out), out);
  EXPECT_EQ(bits(call.out.lse), lse);
  return sentence;
}

TEST(PagedRefusals, Attention) {
  on_stand_in(90, [] {
    rapt_context context(without_cache());
    const cuda::ContextScope scope(0, nullptr);
    const cuda::Stream stream;
    for (const Mistake<rapt_sdpa_args>& mistake : sdpa_mistakes) {
      const std::string sentence = refused_on_cpu(mistake);
      SCOPED_TRACE(sentence);
      EXPECT_EQ(sentence, mistake.sentence);
      PlacedCall gpu(paged_line);
      Replaced replaced;
      gpu.device->args().flags |= RAPT_CHECK_CONTENTS;
      mistake.make(gpu.device->args(), replaced);
      EXPECT_EQ(gpu.enqueue(context, stream.handle()), RAPT_ERROR_INVALID_ARGUMENT);
      EXPECT_EQ(std::string(rapt_last_error()), sentence);
    }
    EXPECT_EQ(fake().launches(), 0);
  });
}

// ---- kv_append: the calls of kv_append_call.h. Caches have 17 pages of 4 rows, or 3 batch rows with capacity 20.

struct AppendMistake {
  AppendSpec spec;
  void (*make)(AppendCall& call);
  std::string sentence;
};
constexpr AppendSpec in_pages{.paged = true}, in_slots{.paged = true, .places = Places::slots},
    rotated{.table = DType::f32, .dim = 32, .rotary_dim = 32, .paged = true};

const AppendMistake append_mistakes[] = {
    {in_pages, [](AppendCall& c) { put(c.seqused_k, {1}, 18); },
     "block_table: sequence 1 has 21 tokens after the append (seqused_k[1] = 18 and 3 new), but its row of the table "
     "has "
     "pages for 20"},
    {in_pages,
     [](AppendCall& c) {
       put(c.block_table, {2, 4}, 17);
     },
     "block_table[2, 4] = 17: must be from 0 to 16, a page of k_cache"},
    {{},
     [](AppendCall& c) { put(c.seqused_k, {2}, 18); },
     "seqused_k[2] = 18: 3 new tokens end at 21, past the capacity 20 of k_cache"},
    {in_slots,
     [](AppendCall& c) {
       put(c.slot_mapping, {1, 2}, 68);
     },
     "slot_mapping[1, 2] = 68: must be negative (skipped) or less than 68, the rows of k_cache"},
    {in_slots,
     [](AppendCall& c) {
       put(c.slot_mapping, {2, 2}, c.slot_mapping.at({0, 2}));
     },
     "slot_mapping: tokens [0, 2] and [2, 2] both have slot 25; two tokens must not have the same place in k_cache"},
    {rotated, [](AppendCall& c) { c.cos.shape[0] = c.sin.shape[0] = 16; },
     "cos.shape = [16, 16]: k[2, 2] has rotary position 16, so cos and sin need at least 17 rows"},
    {in_pages, [](AppendCall& c) { c.block_table = make_tensor(DType::i32, {15}); },
     "block_table.rank = 1 (shape [15]): must be 2, [batch, pages]"},
    {in_pages,
     [](AppendCall& c) {
       c.block_table = make_tensor(DType::i64, {3, 5});
     },
     "block_table.dtype = i64: must be i32"},
    {in_pages, [](AppendCall& c) { c.k_cache = make_poisoned(DType::f16, c.k_cache.shape); },
     "k_cache.dtype = f16: must be that of k, bf16; rapt converts only f32, f16 and bf16 to FP8"},
    {in_pages,
     [](AppendCall& c) {
       c.v_cache = make_poisoned(DType::bf16, {17, 5, 8, 16});
     },
     "v_cache.shape = [17, 5, 8, 16]: must be k_cache's shape with the head dim of v = [17, 5, 4, 16]"},
};

TEST(PagedRefusals, Append) {
  on_stand_in(90, [] {
    rapt_context context(without_cache());
    const cuda::ContextScope scope(0, nullptr);
    const cuda::Stream stream;
    for (const AppendMistake& mistake : append_mistakes) {
      AppendCall call = make_append(mistake.spec);
      mistake.make(call);
      call.flags |= RAPT_KV_APPEND_CHECK_CONTENTS;
      const std::vector<unsigned char> k = bits(call.k_cache), v = bits(call.v_cache);
      const AppendArgs host(call);
      EXPECT_EQ(rapt_kv_append(nullptr, &host.args, nullptr), RAPT_ERROR_INVALID_ARGUMENT);
      const std::string sentence = rapt_last_error();
      SCOPED_TRACE(sentence);
      EXPECT_EQ(sentence, mistake.sentence);
      EXPECT_EQ(bits(call.k_cache), k);
      EXPECT_EQ(bits(call.v_cache), v);
      OnStandIn gpu(call);
      EXPECT_EQ(rapt_kv_append(&context, &gpu.args(), stream.handle()), RAPT_ERROR_INVALID_ARGUMENT);
      EXPECT_EQ(std::string(rapt_last_error()), sentence);
    }
    EXPECT_EQ(fake().launches(), 0);
  });
}

}  // namespace
}  // namespace rapt::test
