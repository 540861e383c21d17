// Tests the C++ header: it passes every option to the C ABI, checks its own rules, and can be included together with
// the library's internals (this file includes both). Also tests the C functions that only return information.
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "base/error.h"
#include "check/tensor.h"
#include "rapt/rapt.hpp"
#include "runtime/plan.h"
#include "support.h"

namespace rapt::test {
namespace {

Tensor tensor_of(const HostTensor& t) {
  if (!t.present()) return {};
  return Tensor(static_cast<void*>(t.data()), static_cast<Type>(t.dtype), t.shape, t.strides);
}

template <class Body>
void expect_exception(rapt_status status, const std::string& words, Body body) {
  try {
    body();
    ADD_FAILURE() << "accepted; expected: " << words;
  } catch (const Exception& e) {
    EXPECT_EQ(e.status(), status) << e.what();
    EXPECT_NE(std::string(e.what()).find(words), std::string::npos) << e.what();
  }
}

// The tensors of a call as options of the C++ header.
SdpaOptions tensors_of(const Call& call, const check::Outputs& out) {
  const check::Inputs& in = call.in;
  return {.lse = tensor_of(out.lse),
          .bias = tensor_of(in.bias),
          .mask = tensor_of(in.mask),
          .alibi_slopes = tensor_of(in.alibi_slopes),
          .sinks = tensor_of(in.sinks),
          .cu_seqlens_q = tensor_of(in.cu_seqlens_q),
          .cu_seqlens_k = tensor_of(in.cu_seqlens_k),
          .seqused_q = tensor_of(in.seqused_q),
          .seqused_k = tensor_of(in.seqused_k),
          .q_starts = tensor_of(in.q_starts),
          .k_starts = tensor_of(in.k_starts),
          .q_descale = tensor_of(in.q_descale),
          .k_descale = tensor_of(in.k_descale),
          .v_descale = tensor_of(in.v_descale)};
}

// Makes the same call through the C ABI (with check/) and through the C++ header (with `options`). Expects equal bits.
void expect_same_as_c(const std::string& line, const std::function<void(SdpaOptions&)>& set) {
  SCOPED_TRACE(line);
  Call call = make(line);
  fill_hash(call);
  for (HostTensor* tensor : {&call.in.bias, &call.in.alibi_slopes, &call.in.sinks})
    if (tensor->present()) fill_hash(*tensor, 11);
  if (call.in.mask.present()) fill(call.in.mask, [](const auto& at) { return (at[2] + at[3]) % 3 == 0 ? 0.0 : 1.0; });
  if (call.in.k_descale.present()) fill(call.in.k_descale, 0.5);
  if (call.in.v_descale.present()) fill(call.in.v_descale, 2);
  expect_oracle(run(call));
  Call other = call;
  other.out = check::make_outputs(call.problem);
  SdpaOptions options = tensors_of(call, other.out);
  set(options);
  sdpa(tensor_of(call.in.q), tensor_of(call.in.k), tensor_of(call.in.v), tensor_of(other.out.out), options);
  expect_same_bits(other, call);
}

}  // namespace

TEST(Api, EveryOptionReachesTheLibrary) {
  const std::string shape = "f16 b2 h4:2 q9 k21 d16:8 lse ";
  const auto nothing = [](SdpaOptions&) {};
  expect_same_as_c(shape, nothing);
  expect_same_as_c(shape + "causal", [](SdpaOptions& o) { o.causal = CausalMask::bottom_right; });
  expect_same_as_c(shape + "causal_top_left", [](SdpaOptions& o) { o.causal = CausalMask::top_left; });
  expect_same_as_c(shape + "window=5,2", [](SdpaOptions& o) { o.window = {{5, 2}}; });
  expect_same_as_c(shape + "window=-1,0", [](SdpaOptions& o) { o.window = SlidingWindow{.right = 0}; });
  expect_same_as_c(shape + "scale=0.7", [](SdpaOptions& o) { o.scale = 0.7f; });
  expect_same_as_c(shape + "scale=0", [](SdpaOptions& o) { o.scale = 0; });
  expect_same_as_c(shape + "softcap=2", [](SdpaOptions& o) { o.softcap = 2; });
  expect_same_as_c(shape + "bias=f32[b,1,q,k] mask=[1,h,q,k] alibi sinks", nothing);
  expect_same_as_c(shape + "seqused=21,4", nothing);
  expect_same_as_c(shape + "causal q_start=3 k_start=-2", [](SdpaOptions& o) {
    o.causal = CausalMask::bottom_right;
    o.q_starts = o.k_starts = {};
    o.q_start = 3;
    o.k_start = -2;
  });
  expect_same_as_c(shape + "causal q_start=3,7 k_start=1,0",
                   [](SdpaOptions& o) { o.causal = CausalMask::bottom_right; });
  expect_same_as_c("bf16 varlen=3:7,0:2,5:5 h4:2 d16 lse causal", [](SdpaOptions& o) {
    o.causal = CausalMask::bottom_right;
    o.max_seqlen_q = 5;
    o.max_seqlen_k = 7;
  });
  expect_same_as_c("q=f32 k=e4m3 v=e5m2 out=f32 b2 h4:2 q9 k70 d16 lse k_scales=block64 v_scales=channel",
                   [](SdpaOptions& o) {
                     o.k_scales = Scales::block64;
                     o.v_scales = Scales::channel;
                   });
  expect_same_as_c(shape + "splits=2", [](SdpaOptions& o) { o.splits = 2; });
  expect_same_as_c(shape + "invariant", [](SdpaOptions& o) { o.invariant = true; });
  expect_same_as_c("q=f16 k=f16 v=f16 out=f32 b2 h4:2 q9 k21 d16 lse partial",
                   [](SdpaOptions& o) { o.partial = true; });
}

// The leading dimensions of bias and mask may be absent: numbers, one per key, and so on broadcast like in NumPy.
TEST(Api, BiasAndMaskOfFewDimensionsBroadcast) {
  const auto drop = [](Tensor& t, size_t dims) {
    const std::vector<int64_t> shape(t.shape().data() + dims, t.shape().data() + t.shape().rank());
    t = Tensor(t.data(), t.type(), shape);
  };
  const char* const shapes[] = {"[b,h,q,k]", "[1,h,q,k]", "[1,1,q,k]", "[1,1,1,k]", "[1,1,1,1]"};
  for (const char* keys : {"k21", "k22"})
    for (size_t dims = 0; dims <= 4; ++dims) {
      const std::string shape = shapes[dims];
      expect_same_as_c(std::string("f16 b2 h4:2 q9 ") + keys + " d16 lse bias=f32" + shape + " mask=" + shape,
                       [&](SdpaOptions& o) { drop(o.bias, dims), drop(o.mask, dims); });
    }
}

TEST(Api, DtypesComeFromPointers) {
  const float* const read_only = nullptr;
  float* const writable = nullptr;
  EXPECT_EQ(Tensor(read_only, {0}).type(), Type::f32);
  EXPECT_TRUE(Tensor(read_only, {0}).read_only());
  EXPECT_FALSE(Tensor(writable, {0}).read_only());
  EXPECT_EQ(Tensor(static_cast<Float16*>(nullptr), {0}).type(), Type::f16);
  EXPECT_EQ(Tensor(static_cast<BFloat16*>(nullptr), {0}).type(), Type::bf16);
  EXPECT_EQ(Tensor(static_cast<E4m3*>(nullptr), {0}).type(), Type::e4m3);
  EXPECT_EQ(Tensor(static_cast<E5m2*>(nullptr), {0}).type(), Type::e5m2);
  EXPECT_EQ(Tensor(static_cast<bool*>(nullptr), {0}).type(), Type::u8);
  EXPECT_EQ(Tensor(static_cast<int32_t*>(nullptr), {0}).type(), Type::i32);
  EXPECT_EQ(Tensor(static_cast<int64_t*>(nullptr), {0}).type(), Type::i64);
  static_assert(!std::is_constructible_v<Tensor, double*, Dims>);
  EXPECT_FALSE(Tensor().present());
}

TEST(Api, TensorKeepsItsOwnShapeAndStrides) {
  float data[64]{};
  Tensor copy;
  {
    std::vector<int64_t> shape{1, 2, 4, 8}, strides{64, 8, 16, 1};
    const Tensor original(data, shape, strides);
    copy = original;
    shape.assign(4, 99);
  }
  const rapt_tensor view = copy.view();
  EXPECT_EQ(view.data, data);
  EXPECT_EQ(view.rank, 4);
  EXPECT_EQ(view.dtype, RAPT_F32);
  EXPECT_EQ(std::vector<int64_t>(view.shape, view.shape + 4), (std::vector<int64_t>{1, 2, 4, 8}));
  EXPECT_EQ(std::vector<int64_t>(view.strides, view.strides + 4), (std::vector<int64_t>{64, 8, 16, 1}));
  const Tensor contiguous(data, {64}), scalar(data, {});
  EXPECT_EQ(contiguous.view().strides, nullptr);
  EXPECT_EQ(scalar.view().rank, 0);
  EXPECT_TRUE(scalar.present());
}

TEST(Api, RulesOfTheHeaderItself) {
  float data[64]{}, out[64]{};
  const float* const constant = out;
  expect_exception(RAPT_ERROR_INVALID_ARGUMENT, "rank 5", [&] { (void)Tensor(data, {1, 1, 1, 1, 1}); });
  expect_exception(RAPT_ERROR_INVALID_ARGUMENT, "rank 2 for a shape of rank 1", [&] {
    (void)Tensor(data, {8}, {8, 1});
  });
  const Tensor x(data, {1, 1, 8, 8}), y(out, {1, 1, 8, 8});
  EXPECT_NO_THROW(sdpa(x, x, x, y));
  expect_exception(RAPT_ERROR_INVALID_ARGUMENT, "out: made from a pointer to const", [&] {
    sdpa(x, x, x, Tensor(constant, {1, 1, 8, 8}));
  });
  expect_exception(RAPT_ERROR_INVALID_ARGUMENT, "lse: made from a pointer to const", [&] {
    sdpa(x, x, x, y, {.lse = Tensor(constant, {1, 1, 8})});
  });
  expect_exception(RAPT_ERROR_INVALID_ARGUMENT, "q", [&] { sdpa({}, x, x, y); });
}

TEST(Api, WhatIsRefusedArrivesAsAnException) {
  float data[64]{}, out[64]{};
  const Tensor x(data, {1, 1, 8, 8}), y(out, {1, 1, 8, 8});
  expect_exception(RAPT_ERROR_INVALID_ARGUMENT, "softcap", [&] { sdpa(x, x, x, y, {.softcap = -1}); });
  expect_exception(RAPT_ERROR_INVALID_ARGUMENT, "softcap", [&] { prepare(x, x, x, y, {.softcap = -1}); });
  expect_exception(RAPT_ERROR_INVALID_ARGUMENT, "softcap", [&] { workspace_size(x, x, x, y, {.softcap = -1}); });
  expect_exception(RAPT_ERROR_INVALID_ARGUMENT, "softcap", [&] { explain(x, x, x, y, {.softcap = -1}); });
  const ScoreMod mod{.device_source = "float apply(...)", .args = {}, .host = nullptr};
  expect_exception(RAPT_ERROR_UNSUPPORTED, "score_mod", [&] { sdpa(x, x, x, y, {.score_mod = &mod}); });
  const int32_t pages[] = {1};
  expect_exception(RAPT_ERROR_INVALID_ARGUMENT, "block_table", [&] {
    sdpa(x, x, x, y, {.block_table = Tensor(pages, {1, 1})});
  });
  E4m3 stored[64]{};
  float scale = 1;
  const float given = 0;
  expect_exception(RAPT_ERROR_INVALID_ARGUMENT, "output.shape", [&] {
    quantize(x, Tensor(stored, {1, 1, 4, 16}), Tensor(&scale, {1}), Scales::tensor);
  });
  expect_exception(RAPT_ERROR_INVALID_ARGUMENT, "descale: made from a pointer to const", [&] {
    quantize(x, Tensor(stored, {1, 1, 8, 8}), Tensor(&given, {1}), Scales::tensor);
  });
  expect_exception(RAPT_ERROR_INVALID_ARGUMENT, "descale = 0", [&] {
    quantize(x, Tensor(stored, {1, 1, 8, 8}), Tensor(&given, {1}), Scales::tensor, {.supplied = true});
  });
  expect_exception(RAPT_ERROR_INVALID_ARGUMENT, "mean = NULL", [&] {
    quantize(x, Tensor(stored, {1, 1, 8, 8}), Tensor(&scale, {1}), Scales::tensor, {.smooth = true});
  });
  expect_exception(RAPT_ERROR_ENVIRONMENT, "no-such.pack", [&] { load_pack("no-such.pack"); });
  expect_exception(RAPT_ERROR_INVALID_ARGUMENT, "count", [&] { merge({}, y); });
  expect_exception(RAPT_ERROR_INVALID_ARGUMENT, "num_threads", [&] { (void)Context({.num_threads = -4}); });
}

// A cache of three pages of four keys, and one sequence with pages 2 and 0.
TEST(Api, WrongPagesArriveAsExceptions) {
  float x[8]{}, cache[2][3 * 4 * 8], out[8], before[3 * 4 * 8];
  for (auto& one : cache) std::fill(std::begin(one), std::end(one), 7.0f);
  std::fill(out, out + 8, 7.0f), std::fill(before, std::end(before), 7.0f);
  int32_t pages[] = {2, 0}, used[] = {5};
  int64_t slots[] = {12};
  float angles[3 * 4]{};
  const Tensor token(static_cast<const float*>(x), {1, 1, 1, 8}), k(cache[0], {3, 1, 4, 8}), v(cache[1], {3, 1, 4, 8});
  const Tensor result(out, {1, 1, 1, 8}), table(pages, {1, 2}), lengths(used, {1});
  const auto refused = [](const char* sentence, const auto& call) {
    expect_exception(RAPT_ERROR_INVALID_ARGUMENT, sentence, call);
  };
  const auto attend = [&](const SdpaOptions& options) { return [&, options] { sdpa(token, k, v, result, options); }; };
  const auto append = [&](const KvAppendOptions& o) { return [&, o] { kv_append(token, token, k, v, o); }; };

  refused("max_seqlen_k = 9: must be at most 8, because a row of block_table has 2 pages of 4 keys",
          attend({.max_seqlen_k = 9, .seqused_k = lengths, .block_table = table}));
  refused("block_table.rank = 1 (shape [2]): must be 2", attend({.block_table = Tensor(pages, {2})}));
  refused("block_table.dtype = i64: must be i32", attend({.block_table = Tensor(slots, {1, 1})}));
  refused(
      "cos.shape = [3, 4]: k[0, 0] has rotary position 5, so cos and sin need at least 6 rows",
      append(
          {.seqused_k = lengths, .block_table = table, .cos = Tensor(angles, {3, 4}), .sin = Tensor(angles, {3, 4})}));
  refused("slot_mapping[0, 0] = 12: must be negative (skipped) or less than 12",
          append({.slot_mapping = Tensor(slots, {1, 1})}));
  pages[1] = 3;
  refused("block_table[0, 1] = 3: must be a page of k, from 0 to 2",
          attend({.seqused_k = lengths, .block_table = table}));
  refused("block_table[0, 1] = 3: must be from 0 to 2, a page of k_cache",
          append({.seqused_k = lengths, .block_table = table}));
  used[0] = 9;
  refused("seqused_k[0] = 9", attend({.seqused_k = lengths, .block_table = table}));
  refused("block_table: sequence 0 has 10 tokens after the append",
          append({.seqused_k = lengths, .block_table = table}));
  for (const float* written : {cache[0], cache[1]}) EXPECT_TRUE(std::equal(before, std::end(before), written));
  EXPECT_TRUE(std::equal(out, out + 8, before));
}

TEST(Api, PrepareChangesNothingAndAsksNothingOfContents) {
  const int32_t nonsense[] = {7, -1, 900};  // prepare does not read contents
  float data[10 * 2 * 8]{}, out[10 * 2 * 8];
  std::fill(std::begin(out), std::end(out), 5.0f);
  const Tensor x(data, {10, 2, 8}), y(out, {10, 2, 8}), cu(nonsense, {3});
  const SdpaOptions options{.cu_seqlens_q = cu, .cu_seqlens_k = cu, .max_seqlen_q = 6, .max_seqlen_k = 6};
  EXPECT_NO_THROW(prepare(x, x, x, y, options));
  EXPECT_NO_THROW(workspace_size(x, x, x, y, options));
  EXPECT_NE(explain(x, x, x, y, options), "");
  for (float value : out) EXPECT_EQ(value, 5.0f);
  expect_exception(RAPT_ERROR_INVALID_ARGUMENT, "cu_seqlens_q", [&] { sdpa(x, x, x, y, options); });
}

TEST(Api, ExplainTellsTheProblemAndEveryFamily) {
  float data[2 * 4 * 8 * 16]{}, out[2 * 4 * 8 * 16];
  const Tensor x(data, {2, 4, 8, 16}), y(out, {2, 4, 8, 16});
  const std::string text = explain(x, x, x, y, {.causal = CausalMask::bottom_right});
  EXPECT_NE(text.find("f32 b2 h4 q8 k8 d16 causal"), std::string::npos) << text;
  EXPECT_NE(text.find("attention_cpu"), std::string::npos) << text;
  EXPECT_NE(text.find("chosen"), std::string::npos) << text;
}

TEST(Api, ExplainCutsAtTheCapacity) {
  Call call = make("f32 b1 h1 q2 k2 d8");
  call.out = check::make_outputs(call.problem);
  const check::SdpaCall built(call.problem, call.in, call.out);
  const rapt_sdpa_args& args = built.args;
  size_t length = 0;
  ASSERT_EQ(rapt_explain(nullptr, &args, nullptr, 0, &length), RAPT_OK) << rapt_last_error();
  ASSERT_GT(length, 12u);
  std::string whole(length + 1, '#'), cut(16, '#');
  ASSERT_EQ(rapt_explain(nullptr, &args, whole.data(), whole.size(), nullptr), RAPT_OK);
  EXPECT_EQ(whole.find('\0'), length);
  size_t again = 0;
  ASSERT_EQ(rapt_explain(nullptr, &args, cut.data(), 10, &again), RAPT_OK);
  EXPECT_EQ(again, length);
  EXPECT_EQ(cut.substr(0, 9), whole.substr(0, 9));
  EXPECT_EQ(cut.substr(9), std::string(1, '\0') + "######");
}

TEST(Api, ACallersWorkspaceGivesTheSameBits) {
  Call call = make("f16 b1 h2 q1 k4000 d64 lse splits=5");
  fill_hash(call);
  run(call);
  Call other = call;
  other.out = check::make_outputs(call.problem);
  SdpaOptions options{.lse = tensor_of(other.out.lse), .splits = 5};
  const Tensor q = tensor_of(call.in.q), k = tensor_of(call.in.k), v = tensor_of(call.in.v),
               out = tensor_of(other.out.out);
  const WorkspaceSize size = workspace_size(q, k, v, out, options);
  // Memory that is not zeroed, with margins around the workspace.
  const HostTensor memory = make_tensor(DType::u8, {static_cast<int64_t>(size.bytes) + 128});
  std::memset(memory.data(), 0x77, size.bytes + 128);
  std::byte* const workspace = memory.data() + 64;
  std::memset(workspace, 0, size.zero_bytes);
  options.workspace = workspace;
  options.workspace_bytes = size.bytes;
  for (int repeat = 0; repeat < 2; ++repeat) {
    sdpa(q, k, v, out, options);
    expect_same_bits(other, call);
  }
  for (size_t n = 0; n < 64; ++n) {
    EXPECT_EQ(memory.data()[n], std::byte{0x77}) << "written before the workspace";
    EXPECT_EQ(workspace[size.bytes + n], std::byte{0x77}) << "written after the workspace";
  }
}

TEST(Api, MergeOfOnePartIsThatPart) {
  const float out[] = {1, 2, 3, 4, 5, 6}, lse[] = {0.5f, -2};
  float merged[6], merged_lse[2];
  const PartialState part{Tensor(out, {1, 1, 2, 3}), Tensor(lse, {1, 1, 2})};
  merge({&part, 1}, Tensor(merged, {1, 1, 2, 3}), {.lse = Tensor(merged_lse, {1, 1, 2})});
  EXPECT_TRUE(std::equal(out, out + 6, merged));
  EXPECT_TRUE(std::equal(lse, lse + 2, merged_lse));
  const float sinks[] = {0.5f};
  merge({&part, 1}, Tensor(merged, {1, 1, 2, 3}), {.lse = Tensor(merged_lse, {1, 1, 2}), .sinks = Tensor(sinks, {1})});
  EXPECT_NEAR(merged_lse[0], 0.5 + std::log(2.0), 1e-6);  // the sink is added to the denominator, not to the sum
  for (int d = 0; d < 3; ++d) EXPECT_NEAR(merged[d], out[d] / 2, 1e-6);
}

TEST(Api, ContextsMoveAndAreUsed) {
  float data[64]{}, out[64];
  const Tensor x(data, {1, 1, 8, 8}), y(out, {1, 1, 8, 8});
  Context first({.num_threads = 2});
  rapt_context* const handle = first.get();
  Context second = std::move(first);
  EXPECT_EQ(second.get(), handle);
  EXPECT_EQ(first.get(), nullptr);  // NOLINT(bugprone-use-after-move): a moved-from context is empty by contract
  sdpa(x, x, x, y, {.context = &second});
  EXPECT_EQ(out[0], 0.0f);
  Context third;
  third = std::move(second);
  EXPECT_EQ(third.get(), handle);
  sdpa(x, x, x, y, {.context = &third});
}

TEST(Api, VersionAndLastError) {
  EXPECT_EQ(version(), std::to_string(RAPT_VERSION_MAJOR) + "." + std::to_string(RAPT_VERSION_MINOR) + "." +
                           std::to_string(RAPT_VERSION_PATCH));
  std::string fresh = "unset";
  std::thread([&] { fresh = rapt_last_error(); }).join();
  EXPECT_EQ(fresh, "");
}

// Both headers use namespace rapt. This does not compile if one name hides another.
TEST(Api, LivesBesideTheInternals) {
  const Error internal(ErrorCode::unsupported, "internal");
  const Exception external(RAPT_ERROR_UNSUPPORTED, "external");
  EXPECT_EQ(static_cast<int>(internal.code()), static_cast<int>(external.status()));
  EXPECT_EQ(static_cast<int>(Causal::top_left), 2);
  EXPECT_EQ(static_cast<int>(CausalMask::top_left), 2);
  for (int code = 0; code <= 9; ++code)
    EXPECT_EQ(static_cast<int32_t>(static_cast<DType>(code)), static_cast<int32_t>(static_cast<Type>(code)));
  EXPECT_NE(explain(parse_problem("f32 b1 h1 q2 k2 d8"), cpu_device()), "");
}

}  // namespace rapt::test
