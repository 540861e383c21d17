// The text of attention_scalar.cuh run on this CPU and judged by the oracle, without a GPU: a block's threads are
// fibers (cuda_emulation.h). Mask and score features run in f32 whatever their line says; each dtype runs plain.
#include <gtest/gtest.h>

#include <cstdlib>

#include "check/cases.h"
#include "check/check.h"
#include "error.h"
#include "kernels/bind.h"
#include "kernels/family.h"
#include "sdpa.h"
#include "tests/cpu/cuda_emulation.h"
// The kernel reads what CUDA declares without any header.
#include "kernels/attention_scalar.cuh"

namespace rapt {

constexpr size_t shared_floats = 99 * 1024 / sizeof(float);  // what every GPU from sm_80 on gives a block
alignas(16) float scalar_shared[shared_floats];

namespace {

using check::Fill;

constexpr AttentionConfig config_of(DType q, DType k, DType v, DType out, int head_dim = 64, int head_dim_v = 64) {
  AttentionConfig c;
  c.q = q, c.k = k, c.v = v, c.out = out;
  c.head_dim = head_dim, c.head_dim_v = head_dim_v;
  c.block_m = 32, c.block_n = 32, c.warps_m = 8;
  const bool fp8 = is_fp8(q) || is_fp8(k) || is_fp8(v);
  c.min_blocks = !fp8 && head_dim_v <= 128 ? 2 : 1;
  c.folded = false;
  return c;
}
constexpr AttentionConfig config_of(DType dtype, int head_dim = 64, int head_dim_v = 64) {
  return config_of(dtype, dtype, dtype, dtype, head_dim, head_dim_v);
}
constexpr AttentionConfig with(bool mask, bool softcap, bool alibi, DType bias) {
  AttentionConfig c = config_of(DType::f32);
  c.mask = mask, c.softcap = softcap, c.alibi = alibi, c.bias = bias;
  if (mask || softcap || alibi || bias != DType::none) c.min_blocks = 1;
  return c;
}

template <AttentionConfig config>
void run(const AttentionParams& params) {
  const auto floats = static_cast<size_t>(ScalarTile(config).floats);
  ASSERT_LE(floats, shared_floats);
  const index_t items = scalar_work_items(params, config);
  // Fewer blocks than work now and then: a block then strides over several items.
  const auto blocks = static_cast<unsigned>(items > 3 && items % 2 == 1 ? items / 2 : items);
  cuda_emulation::launch(blocks, static_cast<unsigned>(config.threads()), scalar_shared, floats,
                         [&] { attend_scalar<config>(params); });
}

template <AttentionConfig... configs>
bool run_one_of(const AttentionConfig& wanted, const AttentionParams& params) {
  return ((wanted == configs && (run<configs>(params), true)) || ...);
}

constexpr auto none = DType::none, f32 = DType::f32, f16 = DType::f16, bf16 = DType::bf16, e4m3 = DType::e4m3,
               e5m2 = DType::e5m2, sim8 = DType::sim8;

bool run_masks(const AttentionConfig& c, const AttentionParams& p) {
  return run_one_of<with(false, false, false, none), with(false, false, true, none), with(false, true, false, none),
                    with(false, false, false, f32), with(false, false, false, f16), with(false, false, false, bf16),
                    with(false, true, true, f32), with(true, false, false, none), with(true, false, true, none),
                    with(true, true, false, none), with(true, false, false, f32), with(true, false, false, f16),
                    with(true, false, false, bf16), with(true, true, true, f32)>(c, p);
}

bool run_types(const AttentionConfig& c, const AttentionParams& p) {
  return run_one_of<config_of(f16), config_of(bf16), config_of(f32, 128, 64), config_of(f32, 128, 128),
                    config_of(f16, 256, 256), config_of(f32, 256, 128), config_of(f32, 64, 256),
                    config_of(f32, 256, 256), config_of(e4m3, e4m3, e4m3, f16), config_of(e5m2, e5m2, e5m2, f32),
                    config_of(sim8, sim8, sim8, bf16), config_of(bf16, e4m3, e4m3, bf16),
                    config_of(f16, f32, bf16, f32)>(c, p);
}

const Device& gpu() {
  static const Device device = device_preset("sm_80");
  return device;
}

// check's kernel: the library's own planning and binding, then the emulated kernel.
void emulated(const Problem& problem, const check::Inputs& inputs, const check::Outputs& outputs) {
  std::string why;
  if (!attention_scalar.accepts(problem, gpu(), &why)) unsupported(why);
  const check::SdpaCall call(problem, inputs, outputs);
  const AttentionParams params = attention_params({call.args, problem});
  const AttentionConfig config = attention_scalar.configure(problem, gpu()).attention;
  if (!run_masks(config, params) && !run_types(config, params)) unsupported("no such kernel in this test");
}

// Runs what it has kernels for, which must be so many problems; an eighth of the lines under RAPT_TEST_QUICK.
void check_set(const char* set, bool as_f32, int at_least) {
  const bool quick = std::getenv("RAPT_TEST_QUICK") != nullptr;
  int checked = 0;
  for (const check::Case& item : check::load_cases(set, RAPT_SOURCE_DIR "/check/cases")) {
    if (quick && item.number % 8 != 0) continue;
    Problem problem = item.problem();
    if (as_f32 && !is_fp8(problem.q)) problem.q = problem.k = problem.v = problem.out = DType::f32;
    for (const Fill fill : item.fills) {
      const check::Result result = check::check_problem(problem, fill, 1, emulated);
      if (result.refused) continue;
      ++checked;
      EXPECT_TRUE(result.pass) << item.where() << " " << name_of(fill) << ": " << result.message;
    }
  }
  EXPECT_GE(checked, quick ? at_least / 20 : at_least);
}

TEST(AttentionScalarText, SmokeSet) {
  RAPT_NEEDS_FIBERS();
  check_set("smoke", false, 80);
}

TEST(AttentionScalarText, MaskSet) {
  RAPT_NEEDS_FIBERS();
  check_set("mask", true, 410);
}

TEST(AttentionScalarText, VarlenSet) {
  RAPT_NEEDS_FIBERS();
  check_set("varlen", true, 30);
}

TEST(AttentionScalarText, QuantSet) {
  RAPT_NEEDS_FIBERS();
  check_set("quant", false, 30);
}

// Slices of dimensions and channels that one block does not hold at once.
TEST(AttentionScalarText, WideHeads) {
  RAPT_NEEDS_FIBERS();
  for (const char* line :
       {"f32 b1 h2 q5 k70 d300:600", "f32 b1 h1 q3 k40 d1000 causal lse", "f32 b1 h1 q40 k33 d257:513 sinks"}) {
    const check::Result result = check::check_problem(parse_problem(line), Fill::hidden_nan, 1, emulated);
    EXPECT_TRUE(result.pass) << line << ": " << result.message;
  }
}

}  // namespace
}  // namespace rapt
