// Emulates kv_append.cuh on this CPU (emulation.h) and compares with rapt_kv_append on the CPU. Caches, descales and
// rotated queries must have equal bits, also in bytes that no token addresses.
#include <gtest/gtest.h>

#include <array>
#include <utility>

#include "kernels/kv_append/kv_append_gpu.h"
#include "kv_append_call.h"
#include "operations/kv_append_rules.h"
#include "rapt/rapt.h"
#include "tests/cpu/emulation.h"
// The kernel uses names that CUDA declares without a header.
#include "kernels/kv_append/kv_append.cuh"

namespace rapt::test {
namespace {

// The configuration of the kernel for calls of a spec.
constexpr KvAppendConfig config_of(const AppendSpec& s) {
  KvAppendConfig c;
  c.k = s.from, c.k_cache = s.to, c.v = s.from_v, c.v_cache = s.to_v, c.q = s.q, c.table = s.table;
  c.dim = s.dim, c.dim_v = s.dim_v, c.rotary_dim = s.rotary_dim;
  c.k_scales = s.scales, c.v_scales = s.scales_v, c.interleaved = s.interleaved;
  const auto vectors = [&](DType from, int dim, int rotary_dim) {
    const int chunk = from == DType::none ? 0 : 16 / bytes_of(from);
    return s.contiguous && chunk > 0 && dim % chunk == 0 && rotary_dim % (2 * chunk) == 0;
  };
  c.k_vectors = vectors(s.from, s.dim, s.rotary_dim), c.v_vectors = vectors(s.from_v, s.dim_v, 0);
  c.q_vectors = vectors(s.q, s.dim, s.rotary_dim);
  c.k_table_vectors = s.rotary_dim > 0 && c.k_vectors, c.q_table_vectors = c.q_vectors;
  return c;
}

template <size_t i>
void run_kernel(const KvAppendParams& p) {
  kv_append<config_of(append_specs[i])>(p);
}
using Kernel = void (*)(const KvAppendParams&);
template <size_t... i>
constexpr std::array<Kernel, sizeof...(i)> kernels_of(std::index_sequence<i...>) {
  return {run_kernel<i>...};
}
constexpr auto kernels = kernels_of(std::make_index_sequence<std::size(append_specs)>());

// Makes the same launch as kv_append_on_gpu(), but with fewer rows of blocks than groups of heads. multiprocessors:
// few, so that a thread takes several heads, or many.
void emulate(size_t i, const AppendCall& call, int multiprocessors) {
  const AppendArgs args(call);
  const KvAppendParams params = kv_append_params(args.args);
  if (!kv_append_has_work(params)) return;
  const KvAppendConfig config = kv_append_config(params);
  ASSERT_TRUE(config == config_of(append_specs[i])) << kv_append_unit(config).text;
  const LaunchSpec spec = kv_append_launch(params, config, multiprocessors);
  const auto& launched = *static_cast<const KvAppendParams*>(spec.params());
  gridDim.y = std::min(spec.grid_y, 3u);
  for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y)
    cuda_emulation::launch(spec.grid_x, static_cast<unsigned>(KvAppendConfig::threads()), nullptr, 0,
                           [&] { kernels[i](launched); });
  gridDim.y = 1, blockIdx.y = 0;
}

// One test for each spec, so that they can run in parallel.
class KvAppendEmulated : public testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(Spec, KvAppendEmulated, testing::Range(size_t{0}, std::size(append_specs)));

TEST_P(KvAppendEmulated, SameBitsAsTheCpu) {
  RAPT_NEEDS_FIBERS();
  for (const AppendSpec& spec : all_places(append_specs[GetParam()]))
    for (const int multiprocessors : {1000, 0}) {
      SCOPED_TRACE(text_of(spec));
      const AppendCall cpu = make_append(spec), emulated = make_append(spec);
      append_on_cpu(cpu);
      emulate(GetParam(), emulated, multiprocessors);
      expect_same_outputs(emulated, cpu);
    }
}

// A GPU skips tokens whose place is not in the cache, and writes all others.
TEST_P(KvAppendEmulated, WrongContentsWriteNothing) {
  RAPT_NEEDS_FIBERS();
  for (const AppendSpec& spec : all_places(append_specs[GetParam()])) {
    SCOPED_TRACE(text_of(spec));
    AppendCall call = make_append(spec);
    if (call.seqused_k.present()) put(call.seqused_k, {0}, 18), put(call.seqused_k, {2}, 2147483647);
    if (call.starts.present()) put(call.starts, {0}, -0x1p62), put(call.starts, {2}, 0x1p62);
    if (call.block_table.present()) put(call.block_table, {1, 0}, -7), put(call.block_table, {0, 4}, 2147483647);
    if (call.cache_batch_idx.present()) put(call.cache_batch_idx, {1}, 5), put(call.cache_batch_idx, {2}, -1);
    if (call.slot_mapping.present()) {
      int64_t i = 0;
      each_index(call.slot_mapping.shape, [&](const auto& at) {
        if (i++ % 3 == 0) put(call.slot_mapping, at, i == 1 ? 100 : 2147483647);
      });
    }
    const AppendCall expected = reference_of(call);
    emulate(GetParam(), call, 1000);
    expect_same_outputs(call, expected);
  }
}

// Wrong lists of lengths read and write nothing outside the tensors.
TEST(KvAppendEmulatedLists, HostileLengths) {
  RAPT_NEEDS_FIBERS();
  for (const auto& list :
       {std::vector<int64_t>{0, -5, 20, 4}, {0, 5, 1, 7}, {3, 1000000, -1, 2147483647}, {-9, -8, -7, -6}}) {
    AppendCall call = make_append({.packed = true});
    call.cu_seqlens = list_of(DType::i32, list);
    emulate(0, call, 1000);
    EXPECT_EQ(written_outside(call.k_cache), 0);
    EXPECT_EQ(written_outside(call.v_cache), 0);
  }
}

}  // namespace
}  // namespace rapt::test
