// Compares rapt_kv_append on a GPU with the CPU, byte for byte, including bytes that no token addresses: every layout,
// format, rotation and kind of place. Also tests graphs, a growing loop of decoding steps, wrong contents and large
// caches. tests/cpu/kv_append_test.cpp compares the CPU with a reference.
#include <functional>

#include "../cpu/kv_append_call.h"
#include "base/error.h"
#include "gpu_support.h"
#include "placed_tensors.h"

namespace rapt::test {
namespace {

// The tensors of a call in GPU memory. Used in a ContextScope of GPU 0.
class OnGpu : public PlacedTensors {
 public:
  explicit OnGpu(const AppendCall& call, size_t guard_bytes = 4096) : PlacedTensors(guard_bytes) {
    args_.emplace(call, placement());
  }
  const rapt_kv_append_args& args() const { return args_->args; }
  rapt_status enqueue(cuda::StreamHandle stream, rapt_context* context = nullptr) const {
    return rapt_kv_append(context, &args(), stream);
  }

 private:
  std::optional<AppendArgs> args_;
};

// Runs the call on the GPU. Afterwards its outputs are on the host.
void append_on_gpu(const AppendCall& call, size_t guard_bytes = 4096) {
  const cuda::Stream stream;
  OnGpu tensors(call, guard_bytes);
  ASSERT_EQ(tensors.enqueue(stream.handle()), RAPT_OK) << rapt_last_error();
  stream.synchronize();
  tensors.download();
}
void expect_same_as_cpu(const AppendSpec& spec) {
  SCOPED_TRACE(text_of(spec));
  const AppendCall cpu = make_append(spec), gpu = make_append(spec);
  append_on_cpu(cpu);
  append_on_gpu(gpu);
  expect_same_outputs(gpu, cpu);
}

class GpuKvAppend : public GpuTest {};
class SmokeKvAppend : public GpuTest {};

TEST_F(SmokeKvAppend, CopiesRotatesAndQuantises) {
  for (const size_t i : {0, 3, 11}) expect_same_as_cpu(append_specs[i]);
}

TEST_F(GpuKvAppend, EveryPlaceLayoutAndFormat) {
  for (const AppendSpec& spec : append_specs)
    for (const AppendSpec& one : all_places(spec)) expect_same_as_cpu(one);
}

// A tensor with normal values, quickly made. Each 16-bit code is a number.
HostTensor random_tensor(DType type, const std::vector<int64_t>& shape, uint32_t random) {
  HostTensor t = make_tensor(type, shape);
  for (int64_t i = 0; i < t.size(); ++i) {
    random = random * 1664525u + 1013904223u;
    const auto code = static_cast<uint16_t>((random >> 16 & 0x807fu) | (random >> 28 | 0x70u) << 7);
    std::memcpy(t.data() + 2 * i, &code, sizeof code);
  }
  return t;
}

// 8192 new tokens: threads then take several heads. The caches are paged, and their pages are in no order.
AppendCall prefill(ScaleKind scales) {
  AppendCall call;
  const int64_t tokens = 4096, page = 16, pages = 600;
  call.k = random_tensor(DType::bf16, {2, 8, tokens, 128}, 1);
  call.v = random_tensor(DType::bf16, {2, 8, tokens, 128}, 2);
  const DType cache = scales == ScaleKind::none ? DType::bf16 : DType::e4m3;
  call.k_cache = make_poisoned(cache, {pages, 8, page, 128});
  call.v_cache = make_poisoned(cache, {pages, 8, page, 128});
  call.k_scales = call.v_scales = static_cast<int32_t>(scales);
  if (scales == ScaleKind::token)
    for (HostTensor* descale : {&call.k_descale, &call.v_descale})
      *descale = make_poisoned(DType::f32, {pages, page, 8});
  call.starts = list_of(DType::i64, {5, 100});
  call.block_table = make_tensor(DType::i32, {2, 300});
  int64_t i = 0;
  each_index(call.block_table.shape, [&](const auto& at) {
    put(call.block_table, at, static_cast<double>(i++ * 7 % pages));  // 7 and 600 have no common divisor
  });
  call.cos = make_tensor(DType::f32, {5000, 64}), call.sin = make_tensor(DType::f32, {5000, 64});
  const check::View cos("cos", call.cos, check::in_host_memory), sin("sin", call.sin, check::in_host_memory);
  rapt_rotary_args tables{};
  tables.struct_size = sizeof tables, tables.cos = cos.get(), tables.sin = sin.get();
  EXPECT_EQ(rapt_rotary_tables(nullptr, &tables), RAPT_OK) << rapt_last_error();
  call.q = random_tensor(DType::bf16, {2, 16, tokens, 128}, 3);
  call.q_out = make_poisoned(DType::bf16, call.q.shape);
  return call;
}

TEST_F(GpuKvAppend, ManyTokens) {
  for (const ScaleKind scales : {ScaleKind::none, ScaleKind::token}) {
    const AppendCall cpu = prefill(scales), gpu = with_own_outputs(cpu);
    append_on_cpu(cpu);
    append_on_gpu(gpu);
    expect_same_outputs(gpu, cpu);
  }
}

// More groups of heads than a grid has rows of blocks.
TEST_F(GpuKvAppend, ManyHeads) {
  AppendCall cpu;
  cpu.k = random_tensor(DType::f16, {1, 70000, 1, 8}, 1), cpu.v = random_tensor(DType::f16, {1, 70000, 1, 8}, 2);
  cpu.k_cache = make_poisoned(DType::f16, {1, 70000, 2, 8}), cpu.v_cache = make_poisoned(DType::f16, {1, 70000, 2, 8});
  cpu.seqused_k = list_of(DType::i32, {1});
  const AppendCall gpu = with_own_outputs(cpu);
  append_on_cpu(cpu);
  append_on_gpu(gpu);
  expect_same_outputs(gpu, cpu);
}

// Wrong places write nothing and touch no other memory. With the check they are errors.
TEST_F(GpuKvAppend, WrongContents) {
  for (const bool paged : {false, true}) {
    AppendCall call = make_append({.paged = paged});
    put(call.seqused_k, {0}, 18), put(call.seqused_k, {1}, -1), put(call.seqused_k, {2}, 2147483647);
    if (paged) put(call.block_table, {0, 4}, 1 << 30), put(call.block_table, {1, 0}, -1);
    const AppendCall expected = reference_of(call);
    append_on_gpu(call, 1 << 20);
    expect_same_outputs(call, expected);
    call.flags = RAPT_KV_APPEND_CHECK_CONTENTS;
    OnGpu tensors(call);
    const cuda::Stream stream;
    EXPECT_EQ(tensors.enqueue(stream.handle()), RAPT_ERROR_INVALID_ARGUMENT);
    EXPECT_NE(std::string(rapt_last_error()).find("seqused_k"), std::string::npos) << rapt_last_error();
    tensors.download();
    expect_same_outputs(call, expected);
  }
}

// A captured step is replayed with the same tensors. Lengths on the GPU change between replays, as in decoding.
TEST_F(GpuKvAppend, GraphOfAGrowingLoop) {
  const auto context = make_context();
  const AppendSpec spec{.to = DType::e4m3,
                        .to_v = DType::e4m3,
                        .q = DType::bf16,
                        .table = DType::f32,
                        .dim = 32,
                        .rotary_dim = 32,
                        .scales = ScaleKind::token,
                        .scales_v = ScaleKind::token,
                        .paged = true};
  AppendCall cpu = make_append(spec), gpu = make_append(spec);
  const cuda::Stream stream;
  OnGpu tensors(gpu);
  cuda::Buffer lengths(append_batch * sizeof(int32_t));
  rapt_kv_append_args args = tensors.args();
  rapt_tensor seqused_k = *args.seqused_k;
  seqused_k.data = lengths.data();
  args.seqused_k = &seqused_k;
  cuda::Graph::begin(stream.handle());
  EXPECT_EQ(tensors.enqueue(stream.handle(), context.get()), RAPT_ERROR_INVALID_ARGUMENT);
  EXPECT_NE(std::string(rapt_last_error()).find("captured"), std::string::npos) << rapt_last_error();
  { const cuda::Graph nothing(stream.handle()); }
  const AppendCall warm = make_append(spec);
  OnGpu first(warm);
  ASSERT_EQ(first.enqueue(stream.handle(), context.get()), RAPT_OK) << rapt_last_error();
  cuda::Graph::begin(stream.handle());
  ASSERT_EQ(rapt_kv_append(context.get(), &args, stream.handle()), RAPT_OK) << rapt_last_error();
  const cuda::Graph graph(stream.handle());
  for (int step = 0; step < 4; ++step) {
    std::vector<int32_t> now;
    for (int64_t b = 0; b < append_batch; ++b) {
      const auto length = static_cast<int32_t>(append_starts(spec.places)[static_cast<size_t>(b)] + step);
      put(cpu.seqused_k, {b}, length);
      now.push_back(length);
    }
    lengths.upload(now.data(), now.size() * sizeof(int32_t), 0);
    append_on_cpu(cpu);
    graph.replay(stream.handle());
    stream.synchronize();
  }
  tensors.download();
  expect_same_outputs(gpu, cpu);
}

}  // namespace
}  // namespace rapt::test
