// Tests the machine code of rapt_kv_append's kernel: no spills, vector loads and stores, and within the GPU's limits.
// Needs NVRTC, no GPU.
#include "device/device.h"
#include "jit/jit.h"
#include "kernels/kv_append/kv_append_gpu.h"
#include "kv_append_call.h"
#include "lab/cubin.h"
#include "operations/kv_append_rules.h"

namespace rapt::test {
namespace {

class KvAppendCode : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    std::string why;
    if (jit::find_compiler(&why) == nullptr) GTEST_SKIP() << "no NVRTC: " << why;
  }

  void expect_sound(const AppendSpec& spec) {
    SCOPED_TRACE(text_of(spec));
    const Device device = device_preset(GetParam());
    const AppendCall call = make_append(spec);
    const AppendArgs args(call);
    const KvAppendConfig config = kv_append_config(kv_append_params(args.args));
    EXPECT_EQ(config.k_vectors, spec.contiguous && spec.dim % 16 == 0);
    const KernelUnit unit = kv_append_unit(config);
    const jit::Image image = jit::compile({.unit = unit.text, .arch = device.arch, .label = "kv_append", .files = {}});
    const jit::Resources used = jit::parse_resources(image.log);
    ASSERT_TRUE(used.known);
    EXPECT_EQ(used.spill_store_bytes + used.spill_load_bytes + used.stack_bytes, 0);
    const lab::InstructionCounts counts = lab::count_instructions(image.bytes);
    EXPECT_EQ(counts.local, 0);
    // All rows and angles are loaded in vectors of 16 bytes.
    int vectors = 0;
    for (const AppendRows& rows : {config.k_rows(), config.v_rows(), config.q_rows()}) {
      if (!rows.vectors || rows.units_per_lane() > 1) continue;  // more units can be a loop
      vectors += rows.heads_ahead() * 2;
      if (rows.rotary_dim > 0) vectors += 2 * std::max(rows.chunk() * bytes_of(rows.table) / 16, 1);
    }
    EXPECT_GE(counts.ldg_16, vectors);
    // Rotation has the CPU's bits, so it has no fused multiply-add. A division has some.
    if (spec.scales == ScaleKind::none) {
      EXPECT_EQ(counts.ffma, 0);
    }
    EXPECT_LE(used.registers * unit.threads * config.min_blocks(), device.registers_per_sm);
  }
};
INSTANTIATE_TEST_SUITE_P(Architectures, KvAppendCode, testing::Values("sm_80", "sm_89", "sm_90a", "sm_120"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(KvAppendCode, DecodeAndPrefill) {
  AppendSpec spec{.dim = 128, .dim_v = 128};
  expect_sound(spec);
  spec.q = DType::bf16, spec.table = DType::f32, spec.rotary_dim = 128;
  expect_sound(spec);
  spec.to = spec.to_v = DType::e4m3, spec.scales = spec.scales_v = ScaleKind::token;
  expect_sound(spec);
  spec.interleaved = true, spec.scales = spec.scales_v = ScaleKind::head;
  expect_sound(spec);
}

TEST_P(KvAppendCode, LongRowsAndSingleElements) {
  AppendSpec spec{.to = DType::e4m3,
                  .to_v = DType::e5m2,
                  .q = DType::f32,
                  .table = DType::bf16,
                  .dim = 576,
                  .dim_v = 512,
                  .rotary_dim = 64,
                  .scales = ScaleKind::token,
                  .scales_v = ScaleKind::token};
  expect_sound(spec);
  spec.contiguous = false;
  expect_sound(spec);
}

}  // namespace
}  // namespace rapt::test
