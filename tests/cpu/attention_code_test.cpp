// The machine code of attention_sm80 on FP8 tensors: it uses FP8 matrix instructions if the architecture has them (each
// product is counted), spills nothing, and stays within the GPU's limits. Needs NVRTC, no GPU.
#include <gtest/gtest.h>

#include "base/error.h"
#include "device/device.h"
#include "jit/jit.h"
#include "kernels/family.h"
#include "kernels/sm80/config.h"
#include "lab/cubin.h"
#include "runtime/plan.h"

namespace rapt::test {
namespace {

class AttentionCode : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    std::string why;
    if (jit::find_compiler(&why) == nullptr) GTEST_SKIP() << "no NVRTC: " << why;
  }
};
INSTANTIATE_TEST_SUITE_P(Architectures, AttentionCode, testing::Values("sm_89", "sm_90a", "sm_120"),
                         [](const auto& test) { return std::string(test.param); });

// The number of matrix instructions for one step of keys in the kernel's loop, calculated from its tiles.
struct Products {
  int scores, values;
};
Products products_of(const Sm80Config& c) {
  const int m_tiles = c.block_m / c.warps_m / 16, dim = (c.head_dim + 31) / 32 * 32;
  return {m_tiles * (c.block_n / 8) * (dim / (c.fp8_qk ? 32 : 16)),
          m_tiles * (c.head_dim_v / 8) * (c.block_n / (c.fp8_pv ? 32 : 16)) * (c.fp8_pv ? c.p_terms : 1)};
}

TEST_P(AttentionCode, Fp8Products) {
  const Device device = device_preset(GetParam());
  for (const char* line : {"e4m3 out=f16 b1 h8 q512 d64 scales=head", "e4m3 out=f16 b1 h8 q512 d64 scales=head pv=fp8",
                           "e4m3 out=bf16 b4 h32 q4096 d128 causal scales=head pv=fp8x2",
                           "e5m2 out=bf16 b4 h32 q4096 d128 scales=head pv=fp8"}) {
    SCOPED_TRACE(line);
    const Step step = plan_by(attention_sm80, parse_problem(line), device).steps[0];
    const Sm80Config& config = step.config.as<Sm80Config>();
    const KernelUnit unit = step.family->unit(step.config);
    const jit::Image image = jit::compile({.unit = unit.text, .arch = device.arch, .label = line, .files = {}});
    const jit::Resources used = jit::parse_resources(image.log);
    const lab::InstructionCounts counts = lab::count_instructions(image.bytes);
    ASSERT_TRUE(used.known);
    EXPECT_EQ(used.spill_store_bytes + used.spill_load_bytes + used.stack_bytes + counts.local, 0);
    EXPECT_LE(used.shared_bytes + static_cast<int>(unit.smem_bytes), device.smem_per_block);
    EXPECT_LE(used.registers * unit.threads * config.min_blocks, device.registers_per_sm);
    const Products products = products_of(config);
    const bool own = device.sm != 90;
    EXPECT_EQ(config.fp8_qk, own);
    EXPECT_EQ(config.fp8_pv, own && config.p_terms > 0);
    const int in_fp8 = (config.fp8_qk ? products.scores : 0) + (config.fp8_pv ? products.values : 0);
    EXPECT_EQ(counts.qmma, in_fp8);
    EXPECT_EQ(counts.hmma, products.scores + products.values - in_fp8);
    RecordProperty(concat(GetParam(), " ", line), concat(counts.qmma, " FP8, ", counts.hmma, " f16"));
  }
}

// The kernels of `invariant` compute every length, so each head dim has one tile.
TEST_P(AttentionCode, InvariantKernelsSpillNothing) {
  const Device device = device_preset(GetParam());
  for (const char* line :
       {"bf16 b1 h32:8 q1 k4096 d64 causal invariant page=16", "bf16 b1 h32:8 q1 k4096 d128 causal invariant page=16",
        "f16 b1 h32:8 q1 k4096 d256 invariant", "bf16 b1 h32:8 q1 k4096 d128 causal softcap=30 invariant",
        "q=bf16 k=e4m3 v=e4m3 b1 h32:8 q1 k4096 d128 k_scales=head v_scales=head causal invariant page=16"}) {
    SCOPED_TRACE(line);
    const Step step = plan(parse_problem(line), device).steps[0];
    ASSERT_EQ(step.family, &attention_decode);
    const KernelUnit unit = step.family->unit(step.config);
    const jit::Image image = jit::compile({.unit = unit.text, .arch = device.arch, .label = line, .files = {}});
    const jit::Resources used = jit::parse_resources(image.log);
    ASSERT_TRUE(used.known);
    EXPECT_EQ(used.spill_store_bytes + used.spill_load_bytes + used.stack_bytes, 0);
    EXPECT_LE(used.shared_bytes + static_cast<int>(unit.smem_bytes), device.smem_per_block);
    EXPECT_LE(used.registers * unit.threads, device.registers_per_sm);
  }
}

}  // namespace
}  // namespace rapt::test
