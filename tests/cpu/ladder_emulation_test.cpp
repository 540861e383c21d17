// Emulates the ladder's own rungs on this CPU and compares with the oracle, without a GPU. A block's threads are fibers
// (emulation.h); matrix instructions and copies are stand-ins (lab/emulation/ptx), which come first in the include
// path. This file is compiled without strict aliasing, like device code, because shared memory is an array of bytes.
#include "tests/cpu/emulation.h"
//
#include <gtest/gtest.h>

#include "check/check.h"
#include "operations/bind.h"
#include "operations/sdpa.h"

// All rungs have the same entry name, because they replace the same file. So each gets another name here.
#define attention_sm80 tiled_entry
#include "tiled.cuh"
#undef attention_sm80
#define attention_sm80 tensor_entry
#include "tensor.cuh"
#undef attention_sm80
#define attention_sm80 pipelined_entry
#include "pipelined.cuh"
#undef attention_sm80
#define attention_sm80 warp_specialised_entry
#include "warp_specialised.cuh"
#undef attention_sm80
#define attention_sm80 persistent_entry
#include "persistent.cuh"
#undef attention_sm80

namespace rapt::test {
namespace {

constexpr Sm80Config config_of(int block_m, int stages, int warps = 4) {
  Sm80Config c;
  c.head_dim = 64, c.head_dim_v = 64, c.block_m = block_m, c.block_n = 64, c.warps_m = warps, c.stages = stages;
  return c;
}

// The address sanitizer reuses stack frames that are still live after a fiber switch, and then reports them as freed.
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define RAPT_ADDRESS_SANITIZER 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(RAPT_ADDRESS_SANITIZER)
constexpr bool has_address_sanitizer = true;
#else
constexpr bool has_address_sanitizer = false;
#endif

// Runs `rung(params, shared memory)` as every thread of every block, and judges the output. The grid has at most
// `most_blocks` blocks.
template <class Rung>
void expect_right(const std::string& line, const Sm80Config& config, Rung rung, unsigned most_blocks = ~0u) {
  if (has_address_sanitizer) GTEST_SKIP() << "its fake stacks and fibers do not go together";
  const Problem problem = parse_problem(line);
  const check::Inputs inputs = check::make_inputs(problem, check::Fill::normal, 7);
  const check::Outputs outputs = check::make_outputs(problem);
  const check::SdpaCall call(problem, inputs, outputs);
  const auto row_tiles = static_cast<unsigned>(problem.seqlen_q / config.block_m);
  const auto heads = static_cast<unsigned>(problem.heads_q), batch = static_cast<unsigned>(problem.batch);
  const Sm80Params params{attention_params(call.args, problem),
                          TileScheduler::of(row_tiles, batch, heads, static_cast<unsigned>(problem.group()), 1)};
  alignas(16) static float shared[99 * 1024 / sizeof(float)];
  emulated_shared = reinterpret_cast<char*>(shared);
  cuda_emulation::launch(std::min(row_tiles * heads * batch, most_blocks), static_cast<unsigned>(config.threads()),
                         shared, std::size(shared), [&] { rung(params, emulated_shared); });
  const check::Result result = check::judge(problem, check::Fill::normal, inputs, outputs);
  EXPECT_TRUE(result.pass) << result.message;
}

constexpr const char* lines[] = {"f16 b1 h2 q64 k64 d64", "f16 b2 h4:2 q128 k192 d64"};

TEST(LadderEmulated, Tiled) {
  static constexpr Sm80Config cfg = config_of(32, 2);
  for (const char* line : lines)
    expect_right(line, cfg, [](const Sm80Params& p, char* shared) {
      ladder::TiledAttention<cfg>(p, reinterpret_cast<float*>(shared)).run();
    });
}

TEST(LadderEmulated, Tensor) {
  static constexpr Sm80Config cfg = config_of(64, 1);
  for (const char* line : lines)
    expect_right(line, cfg, [](const Sm80Params& p, char* shared) {
      const auto scores = reinterpret_cast<float*>(shared + smem_bytes(cfg));
      ladder::TensorAttention<cfg>(p, shared, scores).run(shared, scores);
    });
}

TEST(LadderEmulated, Pipelined) {
  static constexpr Sm80Config cfg = config_of(64, 2);
  for (const char* line : lines)
    expect_right(line, cfg, [](const Sm80Params& p, char* shared) {
      ladder::PipelinedAttention<cfg>(p, shared + smem_bytes(cfg), shared).run();
    });
}

template <int producers>
void expect_warp_specialised() {
  static constexpr Sm80Config cfg = config_of(64, 2, 4 + producers);
  static_assert(ladder::WarpSpecialisedAttention<cfg>::producer_warps == producers);
  for (const char* line : lines)
    expect_right(line, cfg, [](const Sm80Params& p, char* shared) {
      ladder::WarpSpecialisedAttention<cfg>(p, shared + smem_bytes(cfg), shared).run();
    });
}
TEST(LadderEmulated, OneProducerWarp) { expect_warp_specialised<1>(); }
TEST(LadderEmulated, TwoProducerWarps) { expect_warp_specialised<2>(); }

TEST(LadderEmulated, PersistentBlocksTakeSeveralTiles) {
  static constexpr Sm80Config cfg = config_of(64, 2, 5);
  for (const char* line : lines)  // 2 and 16 row tiles
    for (const unsigned blocks : {1u, 3u, 16u})
      expect_right(
          line, cfg,
          [](const Sm80Params& p, char* shared) {
            ladder::PersistentAttention<cfg>(p, shared + smem_bytes(cfg), shared).run();
          },
          blocks);
}

}  // namespace
}  // namespace rapt::test
