// Tests rapt_qk and rapt_gemm on GPU tensors with the stand-in driver of tests/fake_cuda: which kernels are launched,
// what a capture requires, and GPUs that are too old. Needs NVRTC, no GPU. tests/gpu checks the results of kernels.
#include "base/error.h"
#include "cuda/cuda.h"
#include "fake_driver.h"
#include "kernels/products/products_gpu.h"
#include "operations/products.h"
#include "products_support.h"
#include "runtime/context.h"
#include "stand_in.h"

namespace rapt::test {
namespace {

constexpr auto e4m3 = DType::e4m3, f16 = DType::f16;

// The stand-in's GPU memory is host memory, and kernels do not run. So the tensors need not be copied.
ProductArgs on_gpu(const ProductCall& call) {
  return ProductArgs(call, [](const char*, const HostTensor& t) {
    return check::Address{t.data(), {RAPT_DEVICE_CUDA, 0}};
  });
}

TEST(ProductLaunch, AsItsConfigurationSays) {
  for (const int sm : {80, 89})
    on_stand_in(sm, [&] {
      rapt_context context(without_cache());
      const cuda::ContextScope scope(0, nullptr);
      const cuda::Stream stream;
      for (const ProductCall& call :
           {make_qk(e4m3, e4m3, f16, {2, 4, 2, 70, 67, 64}, ScaleKind::head, ScaleKind::token),
            make_gemm(e4m3, e4m3, f16, 130, 70, 1040)}) {
        const ProductArgs args = on_gpu(call);
        const ProductParams params = call.gemm ? product_of(args.gemm, nullptr) : product_of(args.qk, nullptr);
        const ProductConfig config = product_config(params, cuda::device(0));
        EXPECT_EQ(config.tensor_cores, sm >= 89);
        const long before = fake().launches();
        ASSERT_EQ(args.run(&context, stream.handle()), RAPT_OK) << rapt_last_error();
        EXPECT_EQ(fake().launches(), before + 1);
        const fake_cuda::LaunchRecord launch = fake().last_launch();
        EXPECT_EQ(launch.grid_x, product_tiles(params, config));
        EXPECT_EQ(launch.threads, static_cast<unsigned>(config.threads()));
        EXPECT_EQ(launch.smem_bytes, static_cast<unsigned>(config.shared_bytes()));
        EXPECT_EQ(launch.stream, stream.handle());
      }
      // An empty product launches nothing.
      const long before = fake().launches();
      EXPECT_EQ(on_gpu(make_gemm(e4m3, e4m3, f16, 0, 70, 32)).run(&context, stream.handle()), RAPT_OK);
      EXPECT_EQ(fake().launches(), before);
    });
}

TEST(ProductLaunch, CapturesWantTheKernelLoaded) {
  on_stand_in(89, [] {
    rapt_context context(without_cache());
    const cuda::ContextScope scope(0, nullptr);
    const cuda::Stream stream;
    const ProductCall call = make_gemm(e4m3, e4m3, f16, 64, 64, 64);
    const ProductArgs args = on_gpu(call);
    cuda::Graph::begin(stream.handle());
    EXPECT_EQ(args.run(&context, stream.handle()), RAPT_ERROR_INVALID_ARGUMENT);
    EXPECT_NE(std::string(rapt_last_error()).find("call rapt_gemm once with such tensors before the capture"),
              std::string::npos)
        << rapt_last_error();
    const cuda::Graph empty(stream.handle());
    ASSERT_EQ(args.run(&context, stream.handle()), RAPT_OK) << rapt_last_error();
    const long before = fake().launches();
    cuda::Graph::begin(stream.handle());
    EXPECT_EQ(args.run(&context, stream.handle()), RAPT_OK) << rapt_last_error();
    const cuda::Graph graph(stream.handle());
    EXPECT_EQ(fake().launches(), before) << "recorded, not run";
    graph.replay(stream.handle());
    EXPECT_EQ(fake().launches(), before + 1);
  });
}

TEST(ProductLaunch, OldCardsAreRefused) {
  on_stand_in(75, [] {
    rapt_context context(without_cache());
    const ProductCall call = make_qk(f16, f16, f16, {1, 1, 1, 8, 8, 16});
    EXPECT_EQ(on_gpu(call).run(&context, nullptr), RAPT_ERROR_UNSUPPORTED);
    EXPECT_NE(std::string(rapt_last_error()).find("sm_75, must be sm_80 or newer"), std::string::npos)
        << rapt_last_error();
  });
}

}  // namespace
}  // namespace rapt::test
