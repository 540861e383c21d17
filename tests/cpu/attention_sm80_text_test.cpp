// The text of attention_sm80.cuh run on this CPU and judged by the oracle, without a GPU: a block's threads are fibers
// (cuda_emulation.h), matrix instructions and copies are stand-ins (emulated/prim). The build copies the kernel's text
// to where those lie beside it.
#include "tests/cpu/cuda_emulation.h"
//
#include <gtest/gtest.h>

#include <vector>

#include "check/check.h"
#include "kernels/bind.h"
#include "sdpa.h"

#define __align__(bytes) __attribute__((aligned(bytes)))
using std::fabs;
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fdividef(float x, float y) { return x / y; }

namespace rapt {
extern char shared[];  // what the kernel declares
alignas(1024) char shared[227 << 10];
}  // namespace rapt

#include "attention_sm80.cuh"

namespace rapt::test {
namespace {

// The address sanitizer gives frames that outlive a switch of fibers to others, and then takes them for freed ones.
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

constexpr AttentionConfig config_of(DType dtype, int dim, int dim_v, int block_m, int block_n, int warps_m, int warps_k,
                                    int stages) {
  AttentionConfig c;
  c.q = c.k = c.v = c.out = dtype;
  c.head_dim = dim, c.head_dim_v = dim_v, c.block_m = block_m, c.block_n = block_n;
  c.warps_m = warps_m, c.warps_k = warps_k, c.stages = stages;
  return c;
}

// Every thread of every block, in the grid that attention_sm80.cpp would launch.
template <AttentionConfig cfg>
void launch(const Problem& p, const Sm80Params& params) {
  const auto tiles = params.order.row_tiles;
  const auto run = [&](unsigned blocks) {
    cuda_emulation::launch(blocks, static_cast<unsigned>(cfg.threads()), reinterpret_cast<float*>(shared),
                           static_cast<size_t>(smem_bytes(cfg)) / sizeof(float), [&] { attention_sm80<cfg>(params); });
  };
  if constexpr (cfg.warps_k == 1) {
    run(tiles * static_cast<unsigned>(p.batch * p.heads_q));
  } else {
    for (blockIdx.z = 0; blockIdx.z < p.batch; ++blockIdx.z)
      for (blockIdx.y = 0; blockIdx.y < p.heads_q; ++blockIdx.y) run(tiles);
    blockIdx = {};
  }
}

template <AttentionConfig cfg>
void expect_right(const std::string& line, check::Fill fill = check::Fill::normal, unsigned section = 1) {
  if (has_address_sanitizer) GTEST_SKIP() << "its fake stacks and fibers do not go together";
  emulated_shared = shared;
  const auto kernel = [&](const Problem& p, const check::Inputs& in, const check::Outputs& out) {
    const check::SdpaCall call(p, in, out);
    const auto u = [](int64_t n) { return static_cast<unsigned>(n); };
    const Sm80Params params{attention_params({call.args, p}),
                            TileOrder::of(u((p.seqlen_q + cfg.block_m - 1) / cfg.block_m), u(p.batch), u(p.heads_q),
                                          u(p.group()), section)};
    launch<cfg>(p, params);
  };
  const check::Result result = check::check_problem(parse_problem(line), fill, 3, kernel);
  EXPECT_TRUE(result.pass) << line << " " << check::name_of(fill) << ": " << result.message;
}

constexpr check::Fill normal = check::Fill::normal, huge = check::Fill::huge, hidden = check::Fill::hidden_nan;

class Sm80Text : public ::testing::Test {
 protected:
  void SetUp() override { RAPT_NEEDS_FIBERS(); }
};

TEST_F(Sm80Text, Dense) {
  static constexpr AttentionConfig cfg = config_of(DType::f16, 64, 64, 32, 32, 2, 1, 2);
  expect_right<cfg>("f16 b2 h4:2 q70 k130 d64 lse");
  expect_right<cfg>("f16 b1 h2 q33 k64 d64 lse sinks", huge);
}

TEST_F(Sm80Text, TwoRowTilesAWarpAndOneStage) {
  static constexpr AttentionConfig cfg = config_of(DType::bf16, 40, 24, 64, 48, 2, 1, 1);
  expect_right<cfg>("bf16 b1 h2 q100 k150 d40:24 layout=bshd lse");
}

TEST_F(Sm80Text, CausalAndWindows) {
  static constexpr AttentionConfig cfg = [] {
    AttentionConfig c = config_of(DType::f16, 32, 32, 32, 16, 2, 1, 3);
    c.bounded = true;
    return c;
  }();
  for (const unsigned section : {1u, 3u, 8u}) expect_right<cfg>("f16 b2 h2 q75 k75 d32 causal lse", normal, section);
  expect_right<cfg>("f16 b1 h2 q40 k150 d32 window=20,5 lse");
  expect_right<cfg>("f16 b1 h2 q150 k40 d32 causal lse", normal);  // rows that see no key
  expect_right<cfg>("f16 b1 h2 q70 k70 d32 causal lse", hidden);
  expect_right<cfg>("f16 h4:2 d32 varlen=17:5,0:9,64:0,40:100 causal lse", hidden);
  expect_right<cfg>("f16 b1 h2 q33 k60 d32 causal_top_left lse", huge);
}

// Sequences without keys: nothing but Q is copied, and it must not land on the zeros that are stored.
TEST_F(Sm80Text, NoKeys) {
  static constexpr AttentionConfig cfg = config_of(DType::f16, 64, 64, 64, 32, 4, 1, 2);
  expect_right<cfg>("f16 h4 d64 varlen=70:0,3:0,130:0,65:33 lse");
  expect_right<cfg>("f16 b2 h2 q70 k40 d64 seqused=0,40 lse");
}

TEST_F(Sm80Text, EveryOperationOnScores) {
  static constexpr AttentionConfig cfg = [] {
    AttentionConfig c = config_of(DType::bf16, 32, 32, 32, 32, 2, 1, 2);
    c.folded = false, c.softcap = true, c.bias = DType::f32, c.alibi = true, c.mask = true, c.bounded = true;
    return c;
  }();
  expect_right<cfg>("bf16 b2 h2 q50 k70 d32 causal softcap=20 alibi bias=f32[1,h,q,k] mask=[b,1,q,k] sinks lse");
  expect_right<cfg>("bf16 b1 h2 q50 k70 d32 window=30,9 softcap=20 alibi bias=f32[1,1,q,k] mask=[b,h,1,k] lse", hidden);
}

TEST_F(Sm80Text, NegativeAndZeroScale) {
  static constexpr AttentionConfig cfg = [] {
    AttentionConfig c = config_of(DType::f16, 32, 32, 32, 32, 2, 1, 2);
    c.folded = false;
    return c;
  }();
  expect_right<cfg>("f16 b1 h2 q40 k70 d32 scale=-0.3 lse");
  expect_right<cfg>("f16 b1 h2 q40 k70 d32 scale=0 lse");
}

TEST_F(Sm80Text, KeysDealtToWarps) {
  static constexpr AttentionConfig cfg = [] {
    AttentionConfig c = config_of(DType::f16, 64, 64, 32, 32, 2, 4, 1);
    c.q_in_registers = true, c.bounded = true;
    return c;
  }();
  expect_right<cfg>("f16 b2 h4:2 q50 k300 d64 causal lse sinks");
  expect_right<cfg>("f16 b1 h2 q40 k200 d64 window=50,0 lse", hidden);
  expect_right<cfg>("f16 h2 d64 varlen=17:5,0:9,33:0 causal lse");
}

TEST_F(Sm80Text, OutputsOfAnotherKind) {
  static constexpr AttentionConfig cfg = [] {
    AttentionConfig c = config_of(DType::f16, 32, 48, 32, 32, 2, 1, 2);
    c.out = DType::f32, c.bounded = true;
    return c;
  }();
  expect_right<cfg>("f16 b1 h2 q70 k90 d32:48 out=f32 causal partial lse");
  expect_right<cfg>("f16 b1 h2 q70 k90 d32:48 out=f32 causal lse", hidden);
}

TEST_F(Sm80Text, SumsInHalfPrecision) {
  static constexpr AttentionConfig cfg = [] {
    AttentionConfig c = config_of(DType::f16, 32, 32, 32, 32, 2, 1, 2);
    c.f16_accumulate = true;
    return c;
  }();
  expect_right<cfg>("f16 b1 h2 q70 k90 d32 acc=f16 lse");
}

}  // namespace
}  // namespace rapt::test
