// Tests the machine code of rapt_qk and rapt_gemm: it uses FP8 matrix instructions if the architecture has them, it
// spills nothing, and it stays within the GPU's limits. Needs NVRTC, no GPU.
#include "base/error.h"
#include "device/device.h"
#include "jit/jit.h"
#include "kernels/products/products_gpu.h"
#include "lab/cubin.h"
#include "operations/products.h"
#include "products_support.h"

namespace rapt::test {
namespace {

class ProductCode : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    std::string why;
    if (jit::find_compiler(&why) == nullptr) GTEST_SKIP() << "no NVRTC: " << why;
  }

  // A call with this many rows on both sides. The addresses are those of a small call and are not used.
  static ProductParams params_of(const ProductCall& call, int64_t rows) {
    const ProductArgs args(call);
    ProductParams p = call.gemm ? product_of(args.gemm, nullptr) : product_of(args.qk, nullptr);
    p.rows_a = p.rows_b = rows;
    return p;
  }

  static void expect_sound(const std::string& name, const ProductParams& params) {
    const Device device = device_preset(GetParam());
    const ProductConfig config = product_config(params, device);
    const KernelUnit unit = product_unit(config);
    const jit::Image image = jit::compile({.unit = unit.text, .arch = device.arch, .label = name, .files = {}});
    const jit::Resources used = jit::parse_resources(image.log);
    const lab::InstructionCounts counts = lab::count_instructions(image.bytes);
    SCOPED_TRACE(concat(name, ", ", params.rows_a, " rows: ", unit.text));
    ASSERT_TRUE(used.known);
    EXPECT_EQ(used.spill_store_bytes + used.spill_load_bytes + used.stack_bytes + counts.local, 0);
    EXPECT_LE(used.shared_bytes + static_cast<int>(unit.smem_bytes), device.smem_per_block);
    EXPECT_LE(used.registers * unit.threads * config.min_blocks, device.registers_per_sm);
    if (!config.tensor_cores) return;
    EXPECT_GT(counts.ldsm, 0);
    EXPECT_GT(counts.ldgsts, 0);
    const int products = config.block_m / config.warps_m / 16 * (config.block_n / config.warps_n / 8);  // 32 codes each
    if (device.sm == 90)
      EXPECT_GE(counts.hmma, 2 * products);  // without FP8 instructions the compiler uses f16 products
    else
      EXPECT_GE(counts.qmma, products);
  }
};
INSTANTIATE_TEST_SUITE_P(Architectures, ProductCode, testing::Values("sm_80", "sm_89", "sm_90a", "sm_120"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(ProductCode, Fp8QkAndGemm) {
  const DType e4m3 = DType::e4m3, f16 = DType::f16;
  for (const int64_t rows : {64, 8192}) {
    expect_sound("rapt_gemm", params_of(make_gemm(e4m3, e4m3, f16, 16, 16, 1024), rows));
    expect_sound("rapt_qk", params_of(make_qk(e4m3, e4m3, f16, {1, 1, 1, 16, 16, 128}), rows));
    expect_sound("rapt_qk", params_of(make_qk(DType::e5m2, e4m3, DType::f32, {1, 1, 1, 16, 16, 64}), rows));
  }
}

TEST_P(ProductCode, OtherFormats) {
  expect_sound("rapt_qk", params_of(make_qk(DType::f32, DType::bf16, DType::bf16, {1, 1, 1, 16, 16, 64}), 64));
  expect_sound("rapt_gemm", params_of(make_gemm(DType::sim8, DType::f16, DType::f32, 16, 16, 1024), 64));
}

}  // namespace
}  // namespace rapt::test
