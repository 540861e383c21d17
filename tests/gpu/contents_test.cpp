// Tests contents of tensors and arguments: wrong lengths on the GPU, contents that are checked on request, refused
// calls (which write nothing and give the same sentences as on the CPU), poisoned outputs, and NaN around all tensors.
#include <algorithm>
#include <array>
#include <deque>

#include "base/error.h"
#include "check/poison.h"
#include "gpu_support.h"

namespace rapt::test {
namespace {

class GpuContents : public GpuTest {};
class GpuRefusal : public GpuTest {};

struct Hostile {
  const char* name;
  std::vector<int32_t> cu_q, cu_k;
};
// Wrong lists for varlen=20:30,9:41,6:12, which has 35 packed queries, 83 packed keys, and the maxima 20 and 41.
const std::vector<Hostile> hostile = {
    {"negative", {0, -5, 29, 35}, {0, -7, 71, 83}},
    {"beyond the total", {0, 20, 29, 1000000}, {0, 30, 71, 2000000000}},
    {"decreasing", {0, 20, 10, 35}, {0, 71, 30, 83}},
    {"all at the end", {35, 35, 35, 35}, {83, 83, 83, 83}},
    {"extremes", {-2147483647 - 1, 2147483647, -1, 2147483647}, {2147483647, -2147483647 - 1, 2147483647, 0}},
    {"not from zero", {3, 20, 29, 35}, {5, 30, 71, 83}},
    {"longer than the maximum", {0, 0, 35, 35}, {0, 0, 83, 83}},
};

// The sequence to which each packed row belongs. By the rules of docs/semantics.md, lengths are limited to the tensors.
std::vector<int> sequences_per_row(const std::vector<int32_t>& cu, int64_t total, int64_t longest) {
  std::vector<int> count(static_cast<size_t>(total), 0);
  const auto held = [](int64_t x, int64_t high) { return std::max<int64_t>(0, std::min(x, high)); };
  for (size_t b = 0; b + 1 < cu.size(); ++b) {
    const int64_t first = held(cu[b], total), length = held(held(cu[b + 1] - first, total - first), longest);
    for (int64_t i = first; i < first + length; ++i) ++count[static_cast<size_t>(i)];
  }
  return count;
}

void set(HostTensor& list, const std::vector<int32_t>& values) {
  for (size_t i = 0; i < values.size(); ++i) put(list, {static_cast<int64_t>(i)}, values[i]);
}

// Rows outside all sequences must keep the poison. Rows of a sequence must hold numbers, because a NaN can only come
// from outside the tensors. If the offsets decrease, rows can be unwritten, because they belong to no sequence then.
void expect_only_own_rows(const Call& call, const std::vector<int32_t>& cu_q) {
  const Problem& p = call.problem;
  const std::vector<int> owners = sequences_per_row(cu_q, p.total_q, p.seqlen_q);
  int64_t stray = 0, missing = 0, nans = 0;
  for (int64_t row = 0; row < p.total_q; ++row)
    for (int64_t h = 0; h < p.heads_q; ++h)
      for (int64_t d = 0; d < p.head_dim_v; ++d) {
        const int owner_count = owners[static_cast<size_t>(row)];
        const bool poison = check::is_poison(call.out.out, call.out.out.index({row, h, d}));
        stray += owner_count == 0 && !poison;
        missing += owner_count > 0 && poison && std::is_sorted(cu_q.begin(), cu_q.end());
        nans += owner_count > 0 && !poison && std::isnan(call.out.out.at({row, h, d}));
      }
  EXPECT_EQ(stray, 0) << "elements of rows of no sequence were written";
  EXPECT_EQ(missing, 0) << "elements were never written";
  EXPECT_EQ(nans, 0) << "elements were computed from what lies around the tensors";
}

}  // namespace

TEST_F(GpuContents, HostileLengthsReachNothingOutside) {
  for (const char* type : {"f16", "f32", "bf16"})
    for (const char* mask : {"", " causal", " window=4,4"})
      for (const Hostile& h : hostile) {
        SCOPED_TRACE(concat(type, mask, ", ", h.name));
        Call call = make(concat(type, " h2 d32 varlen=20:30,9:41,6:12 lse", mask));
        fill_hash(call);
        set(call.in.cu_seqlens_q, h.cu_q);
        set(call.in.cu_seqlens_k, h.cu_k);
        expect_only_own_rows(run_gpu(call), h.cu_q);
      }
}

TEST_F(GpuContents, HostileUsedLengthsAreHeldWithinTheTensors) {
  for (const char* type : {"f16", "f32"})
    for (const char* shape : {"b3 h2 q9 k40 d32 seqused=40,40,40", "h2 d32 varlen=9:40,9:40,9:40 seqused=40,40,40"}) {
      SCOPED_TRACE(concat(type, " ", shape));
      Call hostile_call = make(concat(type, " ", shape, " lse"));
      fill_hash(hostile_call);
      Call honest = hostile_call;
      honest.in.seqused_k = make_tensor(DType::i32, {3});
      set(honest.in.seqused_k, {40, 0, 0});
      set(hostile_call.in.seqused_k, {2147483647, -3, -2147483647 - 1});
      expect_same_bits(run_gpu(hostile_call), run_gpu(honest));
    }
}

TEST_F(GpuContents, HostileUsedQueriesAreHeldWithinTheTensors) {
  for (const char* type : {"f16", "f32"})
    for (const char* shape : {"b3 h2 q70 k40 d32 seqused_q=0,0,0", "h2 d32 varlen=70:40,9:40,70:40 seqused_q=0,0,0"}) {
      SCOPED_TRACE(concat(type, " ", shape));
      Call hostile_call = make(concat(type, " ", shape, " lse"));
      fill_hash(hostile_call);
      Call honest = hostile_call;
      honest.in.seqused_q = make_tensor(DType::i32, {3});
      set(honest.in.seqused_q, {70, 0, 0});
      set(hostile_call.in.seqused_q, {2147483647, -3, -2147483647 - 1});
      expect_same_bits(run_gpu(hostile_call), run_gpu(honest));
    }
}

TEST_F(GpuContents, CheckedOnRequestWithTheCpusSentence) {
  std::vector<Call> calls;
  for (const Hostile& h : hostile) {
    Call call = make("f16 h2 d32 varlen=20:30,9:41,6:12 lse");
    set(call.in.cu_seqlens_q, h.cu_q);
    set(call.in.cu_seqlens_k, h.cu_k);
    calls.push_back(call);
  }
  Call used = make("f16 b2 h2 q9 k40 d32 seqused=40,40 lse");
  put(used.in.seqused_k, {1}, -1);
  Call mask = make("f16 b2 h2 q9 k40 d32 mask=[b,1,q,k] lse");
  put(mask.in.mask, {1, 0, 3, 7}, 2);
  Call queries = make("f16 b2 h2 q9 k40 d32 seqused_q=9,9 lse");
  put(queries.in.seqused_q, {1}, 10);
  Call longer = make("f16 h2 d32 varlen=20:30,9:41 lse");  // a sequence becomes longer than max_seqlen_k
  longer.problem.seqlen_k = 40;
  calls.push_back(used);
  calls.push_back(mask);
  calls.push_back(queries);
  calls.push_back(longer);
  int refused = 0;
  for (Call& call : calls) {
    SCOPED_TRACE(to_string(call.problem));
    try_run(call);  // on the CPU, which always checks contents
    GpuCall gpu(call);
    gpu.args().flags |= RAPT_CHECK_CONTENTS;
    EXPECT_EQ(gpu.enqueue(nullptr), call.status);
    EXPECT_EQ(gpu.call().message, call.message);
    if (call.status == RAPT_OK) continue;
    ++refused;
    gpu.result();
    EXPECT_TRUE(untouched(gpu.call().out.out) && untouched(gpu.call().out.lse));
  }
  EXPECT_GE(refused, 10) << "of " << calls.size();
}

TEST_F(GpuContents, HonestContentsPassTheCheck) {
  for (const char* line :
       {"f16 h2 d32 varlen=20:30,9:41,6:12 seqused=30,17,0 lse", "f32 b2 h2 q9 k40 d32 mask=[b,1,q,k] lse"}) {
    Call call = make(line);
    fill_hash(call);
    GpuCall gpu(call);
    gpu.args().flags |= RAPT_CHECK_CONTENTS;
    const cuda::Stream stream;
    gpu.expect_enqueue(stream.handle());
    stream.synchronize();
    expect_same_bits(gpu.result(), run_gpu(call));
  }
}

TEST_F(GpuContents, OutputsMayHoldAnything) {  // outputs hold NaN, or the results of an earlier call
  for (const char* line :
       {"f16 b1 h2 q70 k90 d64 causal lse", "f32 b1 h2 q70 k90 d40 lse", "bf16 b1 h2 q70 k0 d64 lse"}) {
    Call call = make(line);
    fill_hash(call);
    GpuCall gpu(call);
    const cuda::Stream stream;
    for (int i = 0; i < 3; ++i) gpu.expect_enqueue(stream.handle());
    stream.synchronize();
    expect_same_bits(gpu.result(), run_gpu(call));
  }
}

TEST_F(GpuContents, LeftOutLseChangesNothing) {
  for (const char* line : {"f16 b1 h2 q70 k90 d64 causal", "f32 b1 h2 q70 k90 d40"}) {
    Call without = make(line), with = make(std::string(line) + " lse");
    fill_hash(without);
    with.in = without.in;
    expect_same_bits(run_gpu(without).out.out, run_gpu(with).out.out);
  }
}

namespace {

// One wrong call: a function that changes the right arguments. `tensors` keeps changed tensors alive.
struct Mistake {
  const char* name;
  void (*make)(rapt_sdpa_args& args, std::deque<rapt_tensor>& tensors);
};

rapt_tensor& altered(const rapt_tensor*& tensor, std::deque<rapt_tensor>& tensors) {
  tensors.push_back(*tensor);
  tensor = &tensors.back();
  return tensors.back();
}

constexpr int64_t other_shape[] = {1, 2, 70, 72};

const std::vector<Mistake> mistakes = {
    {"an unknown flag", [](auto& a, auto&) { a.flags |= uint64_t{1} << 63; }},
    {"an unknown bit of has", [](auto& a, auto&) { a.has |= uint64_t{1} << 40; }},
    {"no q", [](auto& a, auto&) { a.q = nullptr; }},
    {"no out", [](auto& a, auto&) { a.out = nullptr; }},
    {"a scale of NaN", [](auto& a, auto&) { a.has |= RAPT_HAS_SCALE, a.softmax_scale = nan; }},
    {"a soft cap of 0", [](auto& a, auto&) { a.has |= RAPT_HAS_SOFTCAP, a.softcap = 0; }},
    {"a window of -2", [](auto& a, auto&) { a.has |= RAPT_HAS_WINDOW, a.window_left = -2; }},
    {"both causal corners", [](auto& a, auto&) { a.flags |= RAPT_CAUSAL | RAPT_CAUSAL_TOP_LEFT; }},
    {"no splits", [](auto& a, auto&) { a.has |= RAPT_HAS_SPLITS, a.splits = 0; }},
    {"q of integers", [](auto& a, auto& t) { altered(a.q, t).dtype = RAPT_I32; }},
    {"lse in half precision", [](auto& a, auto& t) { altered(a.lse, t).dtype = RAPT_F16; }},
    {"q of rank 3", [](auto& a, auto& t) { altered(a.q, t).rank = 3; }},
    {"q of another head_dim", [](auto& a, auto& t) { altered(a.q, t).shape = other_shape; }},
    {"a missing address", [](auto& a, auto& t) { altered(a.k, t).data = nullptr; }},
    {"bytes of no workspace", [](auto& a, auto&) { a.workspace_bytes = 64; }},
    {"pages", [](auto& a, auto&) { a.block_table = a.q; }},
    {"a partial state in half precision", [](auto& a, auto&) { a.flags |= RAPT_PARTIAL; }},
    {"scales of no kind", [](auto& a, auto&) { a.k_scales = 99; }},
    {"a wrong struct_size", [](auto& a, auto&) { a.struct_size = 8; }},
};

const std::vector<Mistake> gpu_mistakes = {
    {"k in host memory",
     [](auto& a, auto& t) {
       altered(a.k, t).device = {RAPT_DEVICE_CPU, 0};
     }},
    {"a GPU that is not there",
     [](auto& a, auto& t) {
       for (const rapt_tensor** x : {&a.q, &a.k, &a.v, &a.out, &a.lse}) altered(*x, t).device.index = 63;
     }},
    {"a negative GPU",
     [](auto& a, auto& t) {
       for (const rapt_tensor** x : {&a.q, &a.k, &a.v, &a.out, &a.lse}) altered(*x, t).device.index = -1;
     }},
    {"out over q", [](auto& a, auto& t) { altered(a.out, t).data = a.q->data; }},
    {"lse over v", [](auto& a, auto& t) { altered(a.lse, t).data = a.v->data; }},
    {"a crooked workspace",
     [](auto& a, auto&) { a.workspace = static_cast<std::byte*>(a.q->data) + 1, a.workspace_bytes = 64; }},
};

}  // namespace

TEST_F(GpuRefusal, SaysWhatTheCpuSaysAndTouchesNothing) {
  Call call = make("f16 b1 h2 q70 k90 d64 lse");
  fill_hash(call);
  GpuCall gpu(call);
  for (const Mistake& mistake : mistakes) {
    SCOPED_TRACE(mistake.name);
    const check::Outputs host_out = check::make_outputs(call.problem);
    check::SdpaCall host(call.problem, call.in, host_out);
    std::deque<rapt_tensor> tensors;
    rapt_sdpa_args cpu_args = host.args, gpu_args = gpu.args();
    mistake.make(cpu_args, tensors);
    mistake.make(gpu_args, tensors);
    const rapt_status expected = rapt_sdpa(nullptr, &cpu_args, nullptr);
    const std::string sentence = rapt_last_error();
    EXPECT_NE(expected, RAPT_OK);
    for (auto* function : {&rapt_sdpa, &rapt_prepare}) {
      EXPECT_EQ(function(nullptr, &gpu_args, nullptr), expected) << rapt_last_error();
      if (expected == RAPT_ERROR_INVALID_ARGUMENT) {
        EXPECT_EQ(std::string(rapt_last_error()), sentence);
      }
      EXPECT_NE(std::string(rapt_last_error()), "");
    }
    gpu.result();
    EXPECT_TRUE(untouched(gpu.call().out.out) && untouched(gpu.call().out.lse));
  }
}

TEST_F(GpuRefusal, OfWhatOnlyGpusCanGetWrong) {
  Call call = make("f16 b1 h2 q70 k90 d64 lse");
  fill_hash(call);
  GpuCall gpu(call);
  for (const Mistake& mistake : gpu_mistakes) {
    SCOPED_TRACE(mistake.name);
    std::deque<rapt_tensor> tensors;
    rapt_sdpa_args args = gpu.args();
    mistake.make(args, tensors);
    EXPECT_NE(rapt_sdpa(nullptr, &args, nullptr), RAPT_OK);
    EXPECT_NE(std::string(rapt_last_error()), "");
    gpu.result();
    EXPECT_TRUE(untouched(gpu.call().out.out) && untouched(gpu.call().out.lse));
  }
}

TEST_F(GpuRefusal, AWarmCallAllocatesNothing) {
  for (const char* line : {"f16 b1 h8 q512 k512 d64 lse", "f16 b1 h8 q512 k512 d64 causal", "f32 b2 h2 q40 k70 d33 lse",
                           "f16 varlen=17:40,0:5,90:90 h2 d64 lse", "e4m3 out=f16 b1 h2 q70 k90 d32 scales=head"}) {
    SCOPED_TRACE(line);
    Call call = make(line);
    fill_hash(call);
    GpuCall gpu(call);
    const cuda::Stream stream;
    gpu.expect_enqueue(stream.handle());
    const int64_t before = allocations_of_this_thread();
    rapt_status status = RAPT_OK;
    for (int i = 0; i < 10 && status == RAPT_OK; ++i) status = rapt_sdpa(nullptr, &gpu.args(), stream.handle());
    const int64_t allocated = allocations_of_this_thread() - before;
    EXPECT_EQ(allocated, 0) << "host allocations in ten warm calls";
    EXPECT_EQ(status, RAPT_OK) << rapt_last_error();
    stream.synchronize();
  }
}

}  // namespace rapt::test
