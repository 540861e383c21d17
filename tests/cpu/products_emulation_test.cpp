// Emulates products.cuh on this CPU and compares with float64, without a GPU. Threads are fibers (emulation.h); matrix
// instructions and copies are stand-ins (lab/emulation/ptx). The build copies the kernel's source beside them.
#include "tests/cpu/emulation.h"
//
#include "kernels/products/products_gpu.h"
#include "operations/products.h"
#include "tests/cpu/products_support.h"

namespace rapt {
extern char product_shared[];  // the kernel declares it, too
alignas(1024) char product_shared[99 << 10];
}  // namespace rapt

#include "products/products.cuh"

namespace rapt::test {
namespace {

constexpr auto f32 = DType::f32, f16 = DType::f16, bf16 = DType::bf16, e4m3 = DType::e4m3, e5m2 = DType::e5m2,
               sim8 = DType::sim8;

constexpr ProductConfig scalar(DType a, DType b, DType out, int promotion_interval = 0) {
  ProductConfig c;
  c.a = a, c.b = b, c.out = out, c.promotion_interval = promotion_interval;
  return c;
}
constexpr ProductConfig tensor(DType a, DType b, DType out, int block_m, int block_n, int warps_m, int warps_n,
                               int promotion_interval = 0) {
  ProductConfig c = scalar(a, b, out, promotion_interval);
  c.tensor_cores = true, c.block_k = 64, c.stages = 3;
  c.block_m = block_m, c.block_n = block_n, c.warps_m = warps_m, c.warps_n = warps_n;
  return c;
}

template <ProductConfig cfg>
ProductErrors emulate(ProductCall& call) {
  static_assert(cfg.shared_bytes() <= static_cast<int>(sizeof product_shared));
  const ProductArgs args(call);
  const ProductParams params = call.gemm ? product_of(args.gemm, nullptr) : product_of(args.qk, nullptr);
  EXPECT_EQ(params.a.dtype, cfg.a);
  EXPECT_EQ(params.b.dtype, cfg.b);
  EXPECT_EQ(params.out.dtype, cfg.out);
  emulated_shared = product_shared;
  const auto tiles = static_cast<unsigned>(product_tiles(params, cfg));
  const unsigned blocks = tiles > 2 ? (tiles + 1) / 2 : tiles;  // a block loops over several tiles
  cuda_emulation::launch(blocks, static_cast<unsigned>(cfg.threads()), reinterpret_cast<float*>(product_shared),
                         static_cast<size_t>(cfg.shared_bytes()) / sizeof(float), [&] { multiply_rows<cfg>(params); });
  EXPECT_EQ(check::broken_canaries(call.out), 0);
  return judge(call);
}
template <ProductConfig cfg>
void expect_right(ProductCall call) {
  const ProductErrors e = emulate<cfg>(call);
  EXPECT_LE(e.worst, 1.0) << "largest error " << e.max_abs;
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

class ProductsEmulated : public testing::Test {
 protected:
  void SetUp() override {
    RAPT_NEEDS_FIBERS();
    if (has_address_sanitizer) GTEST_SKIP() << "its fake stacks and fibers do not go together";
  }
};

TEST_F(ProductsEmulated, ScalarFormats) {
  expect_right<scalar(f32, f16, f32)>(make_qk(f32, f16, f32, {2, 4, 2, 70, 9, 33}));
  expect_right<scalar(bf16, e5m2, bf16)>(
      make_qk(bf16, e5m2, bf16, {1, 2, 2, 9, 70, 16}, ScaleKind::none, ScaleKind::block64));
  expect_right<scalar(sim8, e4m3, f16)>(
      make_qk(sim8, e4m3, f16, {1, 2, 1, 7, 130, 17}, ScaleKind::token, ScaleKind::head));
}

TEST_F(ProductsEmulated, ScalarStrides) {
  ProductCall call = make_qk(f16, f16, f16, {1, 2, 2, 20, 30, 24});
  call.a = copy_with_strides(call.a, {0, 1, 2 * 24, 2});
  call.b = copy_with_strides(call.b, {0, 30 * 24, -1, -30});
  call.out = check::make_poisoned(f16, call.out.shape, {1200, 600, 1, 20});
  expect_right<scalar(f16, f16, f16)>(call);
  expect_right<scalar(e4m3, e4m3, f32)>(make_gemm(e4m3, e4m3, f32, 17, 70, 33, ScaleKind::token, false));
}

TEST_F(ProductsEmulated, ScalarDeep) {
  expect_right<scalar(e4m3, f32, f32, 512)>(make_gemm(e4m3, f32, f32, 5, 6, 1100, ScaleKind::tensor));
}

TEST_F(ProductsEmulated, TensorCoresSmallTile) {
  static constexpr ProductConfig same = tensor(e4m3, e4m3, f16, 64, 64, 2, 2);
  expect_right<same>(make_qk(e4m3, e4m3, f16, {2, 4, 2, 70, 67, 64}, ScaleKind::head, ScaleKind::head));
  expect_right<same>(make_qk(e4m3, e4m3, f16, {1, 1, 1, 8, 8, 16}, ScaleKind::tensor, ScaleKind::tensor));
  expect_right<same>(make_gemm(e4m3, e4m3, f16, 33, 65, 208, ScaleKind::token));
  expect_right<same>(make_qk(e4m3, e4m3, f16, {1, 1, 1, 3, 3, 0}));
}

TEST_F(ProductsEmulated, TensorCoresMixedFormats) {
  expect_right<tensor(e5m2, e4m3, f32, 64, 64, 2, 2)>(
      make_qk(e5m2, e4m3, f32, {1, 2, 1, 40, 70, 128}, ScaleKind::token, ScaleKind::block64));
  expect_right<tensor(e4m3, e5m2, bf16, 64, 64, 2, 2)>(
      make_qk(e4m3, e5m2, bf16, {1, 2, 1, 40, 70, 80}, ScaleKind::block128, ScaleKind::token));
}

TEST_F(ProductsEmulated, TensorCoresLargeTiles) {
  expect_right<tensor(e4m3, e4m3, f16, 128, 128, 2, 4)>(make_gemm(e4m3, e4m3, f16, 130, 140, 96, ScaleKind::token));
  expect_right<tensor(e4m3, e4m3, f16, 128, 64, 4, 2)>(make_gemm(e4m3, e4m3, f16, 130, 70, 96, ScaleKind::tensor));
}

TEST_F(ProductsEmulated, TensorCoresFlush) {
  expect_right<tensor(e4m3, e4m3, f32, 64, 64, 2, 2, 512)>(make_gemm(e4m3, e4m3, f32, 20, 30, 1200, ScaleKind::token));
  expect_right<tensor(e4m3, e4m3, f32, 128, 128, 2, 4, 512)>(make_gemm(e4m3, e4m3, f32, 20, 30, 512 + 64));
}

// If rows of the output begin at odd elements, elements cannot be written in pairs.
TEST_F(ProductsEmulated, OutputsAnywhere) {
  static constexpr ProductConfig cfg = tensor(e4m3, e4m3, f16, 64, 64, 2, 2);
  ProductCall call = make_gemm(e4m3, e4m3, f16, 40, 41, 64);
  call.out = check::make_poisoned(f16, {40, 41}, {43, 1});
  expect_right<cfg>(call);
  call.out = check::make_poisoned(f16, {40, 41}, {-1, 40});
  expect_right<cfg>(call);
}

// Both kernels and the CPU sum the same products. So their results are equal if the sums are exact in f32.
TEST_F(ProductsEmulated, AgreesWithTheCpu) {
  static constexpr ProductConfig cfg = tensor(e4m3, e4m3, f32, 64, 64, 2, 2), plain = scalar(e4m3, e4m3, f32);
  ProductCall call = make_qk(e4m3, e4m3, f32, {1, 2, 1, 30, 40, 64});
  fill(call.a, [](const auto& at) { return static_cast<double>((at[2] * 7 + at[3]) % 15 - 7); });
  fill(call.b, [](const auto& at) { return static_cast<double>((at[2] * 5 + at[3] * 3) % 13 - 6); });
  ASSERT_EQ(ProductArgs(call).run(nullptr, nullptr), RAPT_OK);
  const std::vector<unsigned char> cpu = bits(call.out);
  emulate<cfg>(call);
  EXPECT_EQ(bits(call.out), cpu);
  emulate<plain>(call);
  EXPECT_EQ(bits(call.out), cpu);
}

}  // namespace
}  // namespace rapt::test
