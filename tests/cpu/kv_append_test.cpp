// Compares rapt_kv_append on the CPU with a simple reference (kv_append_call.h), byte for byte, including every byte
// that no token addresses. Also tests refusals, and that a growing cache never changes old tokens.
#include <gtest/gtest.h>

#include <deque>

#include "base/error.h"
#include "cpu/isa.h"
#include "decode_loop.h"
#include "isa.h"
#include "kv_append_call.h"
#include "rapt/rapt.hpp"

namespace rapt::test {
namespace {

void expect_reference(const AppendCall& call) {
  const AppendCall expected = reference_of(call);
  append_on_cpu(call);
  expect_same_outputs(call, expected);
}

TEST(KvAppend, EveryPlaceLayoutAndFormat) {
  for (const AppendSpec& spec : append_specs)
    for (const AppendSpec& one : all_places(spec)) {
      SCOPED_TRACE(text_of(one));
      expect_reference(make_append(one));
    }
}

// Every pair of dtypes that a call accepts.
TEST(KvAppend, EveryDtype) {
  for (const DType from : {DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e5m2})
    for (const DType to : {DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e5m2})
      for (const ScaleKind scales : {ScaleKind::none, ScaleKind::head, ScaleKind::token})
        for (const int rotary_dim : {0, 8}) {
          const bool quantises = is_fp8(to) && !is_fp8(from);
          const bool legal = scales == ScaleKind::none ? from == to : quantises;
          if (rotary_dim > 0 && is_fp8(from)) continue;
          AppendSpec spec{.from = from, .to = to, .from_v = from, .to_v = to};
          spec.scales = spec.scales_v = scales, spec.rotary_dim = rotary_dim;
          if (rotary_dim > 0) spec.table = DType::f32;
          SCOPED_TRACE(text_of(spec));
          const AppendCall call = make_append(spec);
          if (legal) {
            expect_reference(call);
            continue;
          }
          const AppendCall before = with_own_outputs(call);
          const AppendArgs args(call);
          EXPECT_EQ(rapt_kv_append(nullptr, &args.args, nullptr), RAPT_ERROR_INVALID_ARGUMENT);
          expect_same_outputs(call, before);
        }
}

TEST(KvAppend, QueriesInPlaceAndAtTheStart) {
  AppendSpec spec{.q = DType::bf16, .table = DType::f32, .dim = 40, .rotary_dim = 32};
  for (const bool interleaved : {false, true})
    for (const uint64_t flag : {uint64_t{0}, RAPT_KV_APPEND_Q_AT_START}) {
      spec.interleaved = interleaved;
      AppendCall call = make_append(spec);
      call.flags |= flag;
      expect_reference(call);
      HostTensor q = make_poisoned(DType::bf16, call.q.shape, call.q.strides);
      each_index(q.shape, [&](const auto& at) { put(q, at, call.q.at(at)); });
      call = make_append(spec);
      call.flags |= flag, call.q = q, call.q_out = q;
      expect_reference(call);
    }
  // More queries than new tokens.
  AppendCall call = make_append(spec);
  call.q = make_tensor(DType::bf16, {append_batch, 2, 7, 40});
  fill_new(call.q, 8);
  call.q_out = make_poisoned(DType::bf16, call.q.shape);
  expect_reference(call);
}

// K and V can be views of one tensor; batches, lengths and heads can be 0.
TEST(KvAppend, InterleavedCachesAndSizesOfZero) {
  AppendCall call = make_append({});
  HostTensor both = make_poisoned(DType::bf16, {append_batch, 2 * append_heads, append_capacity, 16});
  call.k_cache = call.v_cache = both;
  call.k_cache.shape[1] = call.v_cache.shape[1] = append_heads;
  call.k_cache.strides[1] *= 2, call.v_cache.strides[1] *= 2;
  call.v_cache.offset += both.strides[1];
  append_on_cpu(call);
  const AppendCall expected = reference_of(make_append({}));
  each_index(call.k_cache.shape, [&](const auto& at) {
    ASSERT_EQ(is_poisoned(call.k_cache, at), is_poisoned(expected.k_cache, at));
    ASSERT_EQ(is_poisoned(call.v_cache, at), is_poisoned(expected.v_cache, at));
  });
  for (const int empty : {0, 1, 2}) {
    AppendCall none = make_append({.places = Places::starts});
    std::vector<int64_t> shape = none.k.shape, cache = none.k_cache.shape;
    shape[static_cast<size_t>(empty)] = 0;
    if (empty < 2) cache[static_cast<size_t>(empty)] = 0;
    none.k = none.v = make_tensor(DType::bf16, shape);
    none.k_cache = make_poisoned(DType::bf16, cache), none.v_cache = make_poisoned(DType::bf16, cache);
    if (empty == 0) none.starts = make_tensor(DType::i64, {0});
    expect_reference(none);
  }
}

TEST(KvAppend, SameBitsOnEveryInstructionSet) {
  for (const AppendSpec& spec : append_specs) {
    const AppendCall expected = reference_of(make_append(spec));
    for_each_isa({CpuIsa::scalar, CpuIsa::avx2, CpuIsa::avx512}, [&] {
      const AppendCall call = make_append(spec);
      append_on_cpu(call);
      expect_same_outputs(call, expected);
    });
  }
}

// One token after the other gives the same cache as all tokens at once. In between, a token that was written once never
// changes, also with a larger one behind it.
TEST(KvAppend, GrowingCacheNeverRescalesOldTokens) {
  const AppendSpec spec{
      .to = DType::e4m3, .to_v = DType::e4m3, .scales = ScaleKind::token, .scales_v = ScaleKind::token};
  AppendCall all = make_append(spec), steps = make_append(spec);
  append_on_cpu(all);
  for (int64_t i = 0; i < append_seqlen; ++i) {
    AppendCall step = steps;
    step.k = slice(steps.k, 2, i, i + 1), step.v = slice(steps.v, 2, i, i + 1);
    std::vector<int64_t> lengths = append_starts(spec.places);
    for (int64_t& length : lengths) length += i;
    step.seqused_k = list_of(DType::i32, lengths);
    append_on_cpu(step);
  }
  expect_same_outputs(steps, all);
}

// ---- Refusals

struct BadRow {
  std::string name;
  AppendSpec spec;
  std::function<void(AppendCall&)> edit;
  std::vector<std::string> words;  // the sentence contains all of them
  std::function<void(rapt_kv_append_args&)> last = [](rapt_kv_append_args&) {};
};

void expect_refused(const BadRow& row) {
  SCOPED_TRACE(row.name);
  AppendCall call = make_append(row.spec);
  row.edit(call);
  const AppendCall before = with_own_outputs(call);
  AppendArgs args(call);
  row.last(args.args);
  EXPECT_EQ(rapt_kv_append(nullptr, &args.args, nullptr), RAPT_ERROR_INVALID_ARGUMENT);
  for (const std::string& word : row.words)
    EXPECT_NE(std::string(rapt_last_error()).find(word), std::string::npos) << rapt_last_error() << "\nlacks " << word;
  expect_same_outputs(call, before);
}

const auto keep = [](AppendCall&) {};

const AppendSpec dense{}, paged{.paged = true}, slots{.places = Places::slots}, packed_spec{.packed = true};
const AppendSpec rotary{.q = DType::bf16, .table = DType::f32, .dim = 32, .rotary_dim = 32};
const AppendSpec rotary_slots{
    .q = DType::bf16, .table = DType::f32, .dim = 32, .rotary_dim = 32, .places = Places::slots};
const AppendSpec by_head{
    .to = DType::e4m3, .to_v = DType::e4m3, .scales = ScaleKind::head, .scales_v = ScaleKind::head};
const AppendSpec by_token{
    .to = DType::e4m3, .to_v = DType::e4m3, .scales = ScaleKind::token, .scales_v = ScaleKind::token, .paged = true};
const AppendSpec indexed{.places = Places::batch_idx};

TEST(KvAppendRefuses, Options) {
  using Args = rapt_kv_append_args;
  const std::vector<BadRow> rows = {
      {"size", dense, keep, {"struct_size", "8"}, [](Args& a) { a.struct_size = 8; }},
      {"has", dense, keep, {"has", "4"}, [](Args& a) { a.has = 4; }},
      {"flags", dense, keep, {"flags", "8"}, [](Args& a) { a.flags = 8; }},
      {"no k", dense, keep, {"k = NULL"}, [](Args& a) { a.k = nullptr; }},
      {"no v_cache", dense, keep, {"v_cache = NULL"}, [](Args& a) { a.v_cache = nullptr; }},
      {"interleaved",
       dense,
       keep,
       {"interleaved: given without cos"},
       [](Args& a) { a.flags = RAPT_KV_APPEND_INTERLEAVED; }},
      {"at start", dense, keep, {"q_at_start: given without q"}, [](Args& a) { a.flags = RAPT_KV_APPEND_Q_AT_START; }},
      {"no source", dense, keep, {"seqused_k", "starts", "slot_mapping", "0"}, [](Args& a) { a.seqused_k = nullptr; }},
      {"two sources", dense, keep, {"exactly one"}, [](Args& a) { a.starts = a.seqused_k; }},
      {"kind", by_head, keep, {"k_scales = 4"}, [](Args& a) { a.k_scales = RAPT_SCALE_BLOCK64; }},
      {"descale missing",
       by_head,
       keep,
       {"k_descale: required with k_scales = head"},
       [](Args& a) { a.k_descale = nullptr; }},
      {"descale unused", dense, keep, {"k_descale: given without k_scales"}, [](Args& a) { a.k_descale = a.k; }},
      {"no kind",
       by_head,
       keep,
       {"k_cache.dtype = e4m3", "k_scales"},
       [](Args& a) { a.k_scales = 0, a.k_descale = nullptr; }},
      {"only cos", rotary, keep, {"cos: given without sin"}, [](Args& a) { a.sin = nullptr; }},
      {"only q", rotary, keep, {"q: given without q_out"}, [](Args& a) { a.q_out = nullptr; }},
      {"q without cos", rotary, keep, {"q: given without cos"}, [](Args& a) { a.cos = a.sin = nullptr; }},
      {"positions without cos",
       rotary_slots,
       keep,
       {"positions: given without cos"},
       [](Args& a) { a.cos = a.sin = a.q = a.q_out = nullptr; }},
      {"slots without positions",
       rotary_slots,
       keep,
       {"positions: required with cos"},
       [](Args& a) { a.positions = nullptr; }},
      {"start and positions",
       rotary_slots,
       keep,
       {"q_at_start: given with positions"},
       [](Args& a) { a.flags |= RAPT_KV_APPEND_Q_AT_START; }},
      {"packed alone",
       packed_spec,
       keep,
       {"k.rank = 3", "cu_seqlens_new"},
       [](Args& a) { a.cu_seqlens_new = nullptr; }},
  };
  for (const BadRow& row : rows) expect_refused(row);
  EXPECT_EQ(rapt_kv_append(nullptr, nullptr, nullptr), RAPT_ERROR_INVALID_ARGUMENT);
  const AppendCall call = make_append({});
  int not_a_stream = 0;
  const AppendArgs args(call);
  EXPECT_EQ(rapt_kv_append(nullptr, &args.args, &not_a_stream), RAPT_ERROR_INVALID_ARGUMENT);
}

TEST(KvAppendRefuses, ShapesAndDtypes) {
  const std::vector<BadRow> rows = {
      {"k rank",
       dense,
       [](AppendCall& c) {
         c.k = make_tensor(DType::bf16, {3, 16});
       },
       {"k.rank = 2"}},
      {"k dtype", dense, [](AppendCall& c) { c.k = make_tensor(DType::sim8, c.k.shape); }, {"k.dtype = sim8"}},
      {"v rank", dense, [](AppendCall& c) { c.v = make_tensor(DType::bf16, {}); }, {"v.rank = 0", "4"}},
      {"v shape",
       dense,
       [](AppendCall& c) {
         c.v = make_tensor(DType::bf16, {3, 5, 2, 16});
       },
       {"v.shape", "5, 3, 16"}},
      {"cache dim",
       dense,
       [](AppendCall& c) {
         c.k_cache = make_poisoned(DType::bf16, {3, 5, 20, 8});
       },
       {"k_cache"}},
      {"cache dtype",
       dense,
       [](AppendCall& c) { c.k_cache = make_poisoned(DType::f16, c.k_cache.shape); },
       {"k_cache.dtype = f16", "bf16"}},
      {"cache dtype of v",
       dense,
       [](AppendCall& c) { c.v_cache = make_poisoned(DType::e5m2, c.v_cache.shape); },
       {"v_cache.dtype = e5m2", "v_scales"}},
      {"page size",
       paged,
       [](AppendCall& c) {
         c.v_cache = make_poisoned(DType::bf16, {17, 5, 8, 16});
       },
       {"v_cache.shape", "[17, 5, 4, 16]"}},
      {"batch rows",
       dense,
       [](AppendCall& c) {
         c.k_cache = make_poisoned(DType::bf16, {4, 5, 20, 16}), c.v_cache = make_poisoned(DType::bf16, {4, 5, 20, 16});
       },
       {"k_cache.shape", "3 batch rows", "cache_batch_idx"}},
      {"table rank",
       paged,
       [](AppendCall& c) { c.block_table = make_tensor(DType::i32, {15}); },
       {"block_table.rank = 1"}},
      {"table dtype",
       paged,
       [](AppendCall& c) {
         c.block_table = make_tensor(DType::i64, {3, 5});
       },
       {"block_table.dtype = i64", "i32"}},
      {"table batch",
       paged,
       [](AppendCall& c) {
         c.block_table = make_tensor(DType::i32, {2, 5});
       },
       {"block_table.shape"}},
      {"table and slots",
       slots,
       [](AppendCall& c) {
         c.block_table = make_tensor(DType::i32, {3, 5});
       },
       {"block_table", "slot_mapping"}},
      {"table and index",
       paged,
       [](AppendCall& c) {
         c.cache_batch_idx = list_of(DType::i32, {0, 1, 2});
       },
       {"cache_batch_idx", "block_table"}},
      {"lengths",
       dense,
       [](AppendCall& c) {
         c.seqused_k = list_of(DType::i32, {1, 2});
       },
       {"seqused_k.shape = [2]", "[3]"}},
      {"lengths dtype",
       dense,
       [](AppendCall& c) { c.seqused_k = make_tensor(DType::f32, {3}); },
       {"seqused_k.dtype = f32"}},
      {"slots shape",
       slots,
       [](AppendCall& c) {
         c.slot_mapping = list_of(DType::i64, {1, 2, 3});
       },
       {"slot_mapping.shape"}},
      {"cu dense",
       dense,
       [](AppendCall& c) {
         c.cu_seqlens = list_of(DType::i32, {0, 1});
       },
       {"cu_seqlens_new", "rank 4"}},
      {"cos dim",
       rotary,
       [](AppendCall& c) {
         c.cos = c.sin = make_tensor(DType::f32, {24, 17});
       },
       {"cos.shape", "32"}},
      {"sin shape",
       rotary,
       [](AppendCall& c) {
         c.sin = make_tensor(DType::f32, {23, 16});
       },
       {"sin.shape", "[24, 16]"}},
      {"sin dtype",
       rotary,
       [](AppendCall& c) {
         c.sin = make_tensor(DType::f16, {24, 16});
       },
       {"sin.dtype = f16"}},
      {"q dtype",
       rotary,
       [](AppendCall& c) { c.q = c.q_out = make_poisoned(DType::e4m3, c.q.shape); },
       {"q.dtype = e4m3"}},
      {"q_out dtype",
       rotary,
       [](AppendCall& c) { c.q_out = make_poisoned(DType::f32, c.q.shape); },
       {"q_out.dtype = f32"}},
      {"q dim",
       rotary,
       [](AppendCall& c) {
         c.q = make_tensor(DType::bf16, {3, 6, 3, 16});
       },
       {"q.shape"}},
      {"rotated FP8",
       rotary,
       [](AppendCall& c) {
         c.k = make_tensor(DType::e4m3, c.k.shape), c.k_cache = make_poisoned(DType::e4m3, c.k_cache.shape);
       },
       {"k.dtype = e4m3", "rotated"}},
      {"FP8 again",
       by_head,
       [](AppendCall& c) { c.k = make_tensor(DType::e4m3, c.k.shape); },
       {"k_scales = head", "already"}},
      {"scales of f16",
       by_head,
       [](AppendCall& c) { c.k_cache = make_poisoned(DType::bf16, c.k_cache.shape); },
       {"k_scales = head", "only FP8 caches"}},
      {"head scales",
       by_head,
       [](AppendCall& c) {
         c.k_descale = make_tensor(DType::f32, {3, 4});
       },
       {"k_descale.shape", "[3, 5]"}},
      {"token scales",
       by_token,
       [](AppendCall& c) {
         c.v_descale = make_poisoned(DType::f32, {17, 5, 4});
       },
       {"v_descale.shape", "[17, 4, 5]"}},
      {"overlap", dense, [](AppendCall& c) { c.v_cache = c.k_cache; }, {"k_cache", "overlaps", "v_cache"}},
      {"cache is new",
       dense,
       [](AppendCall& c) {
         c.k_cache.storage = c.k.storage, c.k_cache.offset = 0, c.k_cache.shape = {3, 5, 3, 16};
         c.k_cache.strides = c.k.strides, c.v_cache = make_poisoned(DType::bf16, {3, 5, 3, 16});
       },
       {"overlaps"}},
      {"q in part",
       rotary,
       [](AppendCall& c) { c.q_out = c.q, c.q_out.strides[1] = c.q.strides[2], c.q_out.strides[2] = c.q.strides[1]; },
       {"q_out"}},
  };
  for (BadRow row : rows) {
    SCOPED_TRACE(row.name);
    AppendCall call = make_append(row.spec);
    row.edit(call);
    const std::vector<unsigned char> k = bits(call.k_cache), v = bits(call.v_cache);
    const AppendArgs args(call);
    EXPECT_EQ(rapt_kv_append(nullptr, &args.args, nullptr), RAPT_ERROR_INVALID_ARGUMENT);
    for (const std::string& word : row.words)
      EXPECT_NE(std::string(rapt_last_error()).find(word), std::string::npos)
          << rapt_last_error() << "\nlacks " << word;
    EXPECT_EQ(bits(call.k_cache), k);
    EXPECT_EQ(bits(call.v_cache), v);
  }
}

const std::vector<BadRow>& bad_contents() {
  static const std::vector<BadRow> rows = {
      {"negative length", dense, [](AppendCall& c) { put(c.seqused_k, {1}, -1); }, {"seqused_k[1] = -1", "negative"}},
      {"past the end",
       dense,
       [](AppendCall& c) { put(c.seqused_k, {2}, 18); },
       {"seqused_k[2] = 18", "3 new tokens", "21", "capacity 20"}},
      {"start past the end",
       {.places = Places::starts},
       [](AppendCall& c) { put(c.starts, {0}, 20); },
       {"starts[0] = 20", "capacity 20"}},
      {"huge start",
       {.places = Places::starts},
       [](AppendCall& c) { put(c.starts, {0}, -0x1p62); },
       {"starts[0]", "-2^60"}},
      {"table too short",
       paged,
       [](AppendCall& c) { put(c.seqused_k, {1}, 18); },
       {"block_table", "sequence 1", "21 tokens", "pages for 20"}},
      {"page -1",
       paged,
       [](AppendCall& c) {
         put(c.block_table, {0, 1}, -1);
       },
       {"block_table[0, 1] = -1", "0 to 16"}},
      {"page 17",
       paged,
       [](AppendCall& c) {
         put(c.block_table, {2, 4}, 17);
       },
       {"block_table[2, 4] = 17", "0 to 16"}},
      {"two sequences on a page",
       paged,
       [](AppendCall& c) {
         put(c.block_table, {1, 0}, c.block_table.at({0, 1})), put(c.seqused_k, {1}, 1);
       },
       {"block_table", "[0, 0]", "[1, 0]", "same place"}},
      {"slot past the end",
       slots,
       [](AppendCall& c) {
         put(c.slot_mapping, {1, 2}, 60);
       },
       {"slot_mapping[1, 2] = 60", "less than 60"}},
      {"equal slots",
       slots,
       [](AppendCall& c) {
         put(c.slot_mapping, {2, 2}, c.slot_mapping.at({0, 2}));
       },
       {"slot_mapping", "[0, 2]", "[2, 2]", "same place"}},
      {"batch row",
       indexed,
       [](AppendCall& c) { put(c.cache_batch_idx, {1}, 5); },
       {"cache_batch_idx[1] = 5", "0 to 4"}},
      {"equal batch rows",
       indexed,
       [](AppendCall& c) { put(c.cache_batch_idx, {1}, 4), put(c.seqused_k, {1}, 4); },
       {"cache_batch_idx", "same place"}},
      {"cu first", packed_spec, [](AppendCall& c) { put(c.cu_seqlens, {0}, 1); }, {"cu_seqlens_new[0] = 1"}},
      {"cu order", packed_spec, [](AppendCall& c) { put(c.cu_seqlens, {2}, 1); }, {"cu_seqlens_new[2] = 1"}},
      {"cu end", packed_spec, [](AppendCall& c) { put(c.cu_seqlens, {3}, 8); }, {"cu_seqlens_new[3] = 8", "7 rows"}},
      {"table of angles",
       rotary,
       [](AppendCall& c) { c.cos.shape[0] = c.sin.shape[0] = 16; },
       {"cos.shape = [16, 16]", "[2, 2]", "position 16", "17 rows"}},
      {"position",
       rotary_slots,
       [](AppendCall& c) {
         put(c.positions, {0, 2}, 24);
       },
       {"cos.shape = [24, 16]", "position 24"}},
      {"descale 0",
       by_head,
       [](AppendCall& c) {
         put(c.v_descale, {2, 1}, 0);
       },
       {"v_descale[2, 1] = 0", "2^-126"}},
      {"descale nan",
       by_head,
       [](AppendCall& c) {
         put(c.k_descale, {0, 0}, nan);
       },
       {"k_descale[0, 0]"}},
  };
  return rows;
}

TEST(KvAppendRefuses, Contents) {
  for (const BadRow& row : bad_contents()) expect_refused(row);
}

// ---- C++ and tables

TEST(KvAppend, Cpp) {
  float k[2 * 8] = {1, 2, 3, 4, 5, 6, 7, 8}, cache_k[4 * 8] = {}, cache_v[4 * 8] = {}, q[8] = {1}, cos[4], sin[4];
  const int32_t used[] = {2};
  rapt::rotary_tables(Tensor(cos, {4, 1}), Tensor(sin, {4, 1}));
  rapt::kv_append(Tensor(k, {1, 1, 1, 8}), Tensor(k + 8, {1, 1, 1, 8}), Tensor(cache_k, {1, 1, 4, 8}),
                  Tensor(cache_v, {1, 1, 4, 8}),
                  {.seqused_k = Tensor(used, {1}),
                   .cos = Tensor(cos, {4, 1}),
                   .sin = Tensor(sin, {4, 1}),
                   .interleaved = true,
                   .q = Tensor(q, {1, 1, 1, 8}),
                   .q_out = Tensor(q, {1, 1, 1, 8})});
  EXPECT_EQ(cache_k[16], 1 * cos[2] - 2 * sin[2]);
  EXPECT_EQ(cache_k[17], 2 * cos[2] + 1 * sin[2]);
  EXPECT_EQ(cache_k[18], 3);
  EXPECT_EQ(q[0], cos[2]);
  EXPECT_EQ(cache_k[8], 0);
}

// Attention over a cache that grows by one token in each step.
TEST(KvAppend, ALoopOfDecodingSteps) {
  constexpr int64_t steps = 40;
  DecodeLoop loop(steps);
  const AppendArgs append(loop.append);
  const check::View q("q", loop.q, check::in_host_memory), used("seqused_k", loop.used, check::in_host_memory);
  const check::View out("out", loop.out, check::in_host_memory);
  rapt_sdpa_args attention{};
  attention.struct_size = sizeof attention, attention.q = q.get(), attention.out = out.get();
  attention.k = append.args.k_cache, attention.v = append.args.v_cache, attention.block_table = append.args.block_table;
  attention.seqused_k = used.get();
  for (int64_t step = 0; step < steps; ++step) {
    SCOPED_TRACE(step);
    loop.begin(step);
    ASSERT_EQ(rapt_kv_append(nullptr, &append.args, nullptr), RAPT_OK) << rapt_last_error();
    ASSERT_EQ(rapt_sdpa(nullptr, &attention, nullptr), RAPT_OK) << rapt_last_error();
    loop.expect_right();
  }
}

}  // namespace
}  // namespace rapt::test
