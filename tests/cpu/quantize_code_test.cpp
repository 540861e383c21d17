// Tests the machine code of rapt_quantize's kernels: no spills, and within the GPU's limits. Needs NVRTC, no GPU.
#include <set>

#include "base/error.h"
#include "device/device.h"
#include "jit/jit.h"
#include "kernels/quantize/quantize_gpu.h"
#include "lab/cubin.h"
#include "operations/quantize_rules.h"
#include "quantize_call.h"

namespace rapt::test {
namespace {

class QuantizeCode : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    std::string why;
    if (jit::find_compiler(&why) == nullptr) GTEST_SKIP() << "no NVRTC: " << why;
  }

  void expect_sound(const QuantizeConfig& config) {
    const Device device = device_preset(GetParam());
    const KernelUnit unit = quantize_unit(config);
    if (!seen_.insert(unit.text).second) return;  // another call had the same kernel
    const jit::Image image = jit::compile({.unit = unit.text, .arch = device.arch, .label = "quantize", .files = {}});
    const jit::Resources used = jit::parse_resources(image.log);
    SCOPED_TRACE(unit.text);
    ASSERT_TRUE(used.known);
    EXPECT_EQ(used.spill_store_bytes + used.spill_load_bytes + used.stack_bytes, 0);
    EXPECT_EQ(lab::count_instructions(image.bytes).local, 0);
    EXPECT_LE(static_cast<int>(unit.smem_bytes), device.smem_per_block);
    EXPECT_LE(used.registers * unit.threads * config.min_blocks(), device.registers_per_sm);
  }

  // Checks every kernel of a call.
  void expect_sound(DType input, int64_t dim, int32_t scales, uint64_t flags) {
    QuantizeCall call;
    call.input = make_tensor(input, {1, 1, 256, dim});
    call.scales = scales, call.flags = flags;
    call.poison(DType::e4m3);
    for (const QuantizeConfig& config : quantize_configs(quantize_params(QuantizeArgs(call).args)))
      expect_sound(config);
  }

 private:
  std::set<std::string> seen_;
};
INSTANTIATE_TEST_SUITE_P(Architectures, QuantizeCode, testing::Values("sm_80", "sm_89", "sm_90a", "sm_120"),
                         [](const auto& test) { return std::string(test.param); });

// Rows whose elements divide evenly among threads, rows whose elements do not, and rows that are too long for
// registers.
TEST_P(QuantizeCode, PlainAndTransformed) {
  constexpr uint64_t both = RAPT_QUANTIZE_HADAMARD | RAPT_QUANTIZE_SMOOTH;
  for (const int64_t dim : {128, 256, 776})
    for (const int32_t scales : {RAPT_SCALE_TOKEN, RAPT_SCALE_BLOCK64, RAPT_SCALE_BLOCK128, RAPT_SCALE_CHANNEL}) {
      expect_sound(DType::f16, dim, scales, 0);
      expect_sound(dim == 776 ? DType::bf16 : DType::f32, dim, scales, both);
    }
}

}  // namespace
}  // namespace rapt::test
