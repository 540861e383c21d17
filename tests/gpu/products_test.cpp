// Compares rapt_qk and rapt_gemm on a GPU with float64, with guards around every tensor: the FP8 kernel and the general
// kernel, scales, strides, and long sums. Also tests refused calls.
#include "operations/products.h"

#include <deque>
#include <memory>

#include "../cpu/products_support.h"
#include "base/error.h"
#include "gpu_support.h"
#include "jit/jit.h"
#include "kernels/products/products_gpu.h"
#include "runtime/gpu.h"

namespace rapt::test {
namespace {

constexpr auto f32 = DType::f32, f16 = DType::f16, bf16 = DType::bf16, e4m3 = DType::e4m3, e5m2 = DType::e5m2,
               sim8 = DType::sim8;

// The tensors of a call in GPU memory, with bytes 0xff (NaN) on both sides of each tensor.
class Placed {
 public:
  explicit Placed(const ProductCall& call)
      : call_(call), args_(call, [this](const char* name, const HostTensor& t) { return place(name, t); }) {}

  rapt_status run(rapt_context* context, cuda::StreamHandle stream) const { return args_.run(context, stream); }
  const ProductArgs& args() const { return args_; }
  void expect_guards() const {
    for (const Tensor& t : tensors_) {
      std::vector<unsigned char> all(t.buffer.bytes());
      t.buffer.download(all.data(), all.size());
      for (size_t i = 0; i < all.size(); ++i) {
        if (i == guard) i += t.bytes;
        ASSERT_EQ(all[i], 0xff) << t.name << ", byte " << i;
      }
    }
  }
  void download() const {
    for (const Tensor& t : tensors_)
      if (t.host == &call_.out) t.buffer.download(t.first(), t.bytes, guard);
  }

 private:
  static constexpr size_t guard = 4096;
  struct Tensor {
    std::string name;
    const HostTensor* host;
    size_t bytes;
    cuda::Buffer buffer;
    std::byte* first() const {
      return host->data() + check::reach(host->shape, host->strides).first * bytes_of(host->dtype);
    }
  };
  check::Address place(const char* name, const HostTensor& t) {
    const check::Span span = check::reach(t.shape, t.strides);
    const auto width = static_cast<int64_t>(bytes_of(t.dtype));
    Tensor placed{name, &t, static_cast<size_t>((span.last - span.first + 1) * width), {}};
    placed.buffer = cuda::Buffer(placed.bytes + 2 * guard);
    placed.buffer.fill(0xff);
    if (placed.bytes > 0) placed.buffer.upload(placed.first(), placed.bytes, guard);
    std::byte* data = static_cast<std::byte*>(placed.buffer.data()) + guard;
    tensors_.push_back(std::move(placed));
    return {data - span.first * width, first_gpu};
  }

  const ProductCall& call_;
  std::deque<Tensor> tensors_;
  ProductArgs args_;
};

class GpuProducts : public GpuTest {
 protected:
  // Tensor cores of Ada keep about 13 fraction bits of a sum of 32 products; f32 tensor cores may truncate where the
  // CPU rounds.
  static double slack(const ProductConfig& config) {
    if (!config.tensor_cores) return 1.0;
    const int sm = cuda::device(0).sm;
    return sm == 89 || sm >= 120 ? 0x1p7 : 2.0;
  }
  static ProductConfig config_of(const Placed& placed, bool gemm) {
    const ProductParams params = gemm ? product_of(placed.args().gemm, nullptr) : product_of(placed.args().qk, nullptr);
    return product_config(params, cuda::device(0));
  }

  static ProductErrors run(ProductCall& call, rapt_context* context = nullptr) {
    const cuda::Stream stream;
    const Placed placed(call);
    const rapt_status status = placed.run(context, stream.handle());
    EXPECT_EQ(status, RAPT_OK) << rapt_last_error();
    if (status != RAPT_OK) return {infinity, infinity};
    stream.synchronize();
    placed.expect_guards();
    placed.download();
    EXPECT_EQ(check::broken_canaries(call.out), 0);
    return judge(call, slack(config_of(placed, call.gemm)));
  }
  static void expect_right(ProductCall call, const std::string& what) {
    const ProductErrors e = run(call);
    EXPECT_LE(e.worst, 1.0) << what << ", largest error " << e.max_abs;
  }
};

// The same test as in tests/cpu/products_test.cpp.
TEST_F(GpuProducts, AccuracyOfTheFirstKernels) {
  double raw = 0, scaled = 0;
  for (const ScaleKind kind : {ScaleKind::tensor, ScaleKind::head})
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      ProductCall call = make_qk(e4m3, e4m3, f16, {1, 4, 4, 8, 8, 64}, kind, kind, seed);
      raw = std::max(raw, run(call).max_abs);
      call.scale = 0.125;
      scaled = std::max(scaled, run(call).max_abs);
    }
  std::printf("rapt_qk at 4x8x64: largest error %.6f raw, %.6f scaled\n", raw, scaled);
  EXPECT_LE(raw, 0.0078125);
  EXPECT_LE(scaled, 0.0009765625);
}

TEST_F(GpuProducts, QkFormatsAndScales) {
  for (const DType q : {f32, f16, bf16, e4m3, e5m2, sim8})
    for (const DType k : {f16, e4m3, e5m2})
      expect_right(make_qk(q, k,
                           q == f32    ? f32
                           : k == e5m2 ? bf16
                                       : f16,
                           {2, 2, 1, 37, 70, 48}),
                   concat(name_of(q), " ", name_of(k)));
  for (const ScaleKind q :
       {ScaleKind::tensor, ScaleKind::head, ScaleKind::token, ScaleKind::block64, ScaleKind::block128})
    for (const ScaleKind k : {ScaleKind::none, ScaleKind::head, ScaleKind::token, ScaleKind::block64})
      for (const int64_t dim : {64, 40})
        expect_right(make_qk(e4m3, e4m3, f16, {1, 4, 2, 130, 200, dim}, q, k),
                     concat("scales ", static_cast<int>(q), " ", static_cast<int>(k), " d", dim));
}

TEST_F(GpuProducts, GemmSizesAndLayouts) {
  for (const bool k_contiguous : {true, false})
    for (const ScaleKind scales : {ScaleKind::none, ScaleKind::tensor, ScaleKind::token})
      for (const auto& [m, n, k] :
           {std::array<int64_t, 3>{1, 1, 1}, {16, 8, 32}, {33, 65, 17}, {70, 130, 640}, {300, 150, 48}})
        for (const DType a : {e4m3, e5m2})
          expect_right(make_gemm(a, e4m3, a == e5m2 ? bf16 : f16, m, n, k, scales, k_contiguous),
                       concat(name_of(a), " ", m, "x", n, "x", k, " scales ", static_cast<int>(scales)));
}

// The problem is large enough for the larger tile, and its sums are long enough to be computed in parts.
TEST_F(GpuProducts, LargeGemm) {
  for (const int64_t k : {512, 2048}) {
    ProductCall call = make_gemm(e4m3, e4m3, f16, 2080, 2064, k, ScaleKind::tensor);
    const Placed placed(call);
    const ProductConfig config = config_of(placed, true);
    EXPECT_EQ(config.block_m, 128);
    EXPECT_EQ(config.promotion_interval, k > product_promotion_interval ? product_promotion_interval : 0);
    const cuda::Stream stream;
    ASSERT_EQ(placed.run(nullptr, stream.handle()), RAPT_OK) << rapt_last_error();
    stream.synchronize();
    placed.download();
    for (int64_t i = 0; i < 2080; i += 61)
      for (int64_t j = i % 7; j < 2064; j += 59) {
        const ProductReference r = reference(call, {i, j});
        EXPECT_LE(std::fabs(call.out.at({i, j}) - r.value), product_bound(call, r, slack(config))) << i << " " << j;
      }
  }
}

TEST_F(GpuProducts, StridesAndGroups) {
  ProductCall call = make_qk(e4m3, e4m3, f32, {2, 6, 2, 33, 65, 64}, ScaleKind::token, ScaleKind::head);
  call.scale = -0.25;
  expect_right(call, "contiguous");
  ProductCall other = call;
  other.a = copy_with_strides(call.a, {33 * 6 * 64, 64, 6 * 64, 1});
  other.b = copy_with_strides(call.b, {65 * 2 * 64, 64, 2 * 64, 1});
  expect_right(other, "heads last");
  other.a = copy_with_strides(call.a, {33 * 6 * 128, 128, 6 * 128, 2});
  other.b = copy_with_strides(call.b, {2 * 65 * 64, 65 * 64, -64, -1});
  other.out = check::make_poisoned(f32, call.out.shape, {6 * 33 * 65, 33 * 65, 1, 33});
  expect_right(other, "apart, backwards, out by columns");
  ProductCall odd = make_gemm(e4m3, e4m3, f16, 40, 41, 64);
  odd.out = check::make_poisoned(f16, {40, 41}, {43, 1});
  expect_right(odd, "rows of out that begin at odd elements");
}

// Both kernels and the CPU must give equal results if the sums are exact in f32.
TEST_F(GpuProducts, ExactSumsAreTheCpus) {
  ProductCall call = make_qk(e4m3, e4m3, f32, {1, 2, 1, 100, 70, 64});
  fill(call.a, [](const auto& at) { return static_cast<double>((at[2] * 7 + at[3]) % 15 - 7); });
  fill(call.b, [](const auto& at) { return static_cast<double>((at[2] * 5 + at[3] * 3) % 13 - 6); });
  ASSERT_EQ(ProductArgs(call).run(nullptr, nullptr), RAPT_OK);
  const std::vector<unsigned char> cpu = bits(call.out);
  run(call);
  EXPECT_EQ(bits(call.out), cpu);
  call.a = copy_with_strides(call.a, {0, 100 * 128, 128, 2});
  run(call);
  EXPECT_EQ(bits(call.out), cpu);
}

TEST_F(GpuProducts, RepeatsBitForBit) {
  ProductCall call = make_gemm(e4m3, e4m3, f16, 200, 300, 1040, ScaleKind::token);
  run(call);
  const std::vector<unsigned char> first = bits(call.out);
  for (int i = 0; i < 3; ++i) {
    run(call);
    EXPECT_EQ(bits(call.out), first);
  }
}

TEST_F(GpuProducts, WhatIsNotFiniteStaysInItsRows) {
  ProductCall call = make_qk(e4m3, e4m3, f32, {1, 1, 1, 40, 70, 32});
  put(call.a, {0, 0, 3, 5}, nan);
  put(call.b, {0, 0, 66, 31}, nan);
  run(call);
  each_index(call.out.shape, [&](const auto& at) {
    EXPECT_EQ(std::isnan(call.out.at(at)), at[2] == 3 || at[3] == 66) << at[2] << " " << at[3];
  });
}

TEST_F(GpuProducts, SizesOfZero) {
  for (const QkShape& s :
       {QkShape{0, 2, 2, 4, 4, 16}, QkShape{1, 2, 2, 0, 4, 16}, QkShape{1, 2, 2, 4, 0, 16}, QkShape{1, 2, 2, 4, 4, 0}})
    for (const DType dtype : {e4m3, f16}) expect_right(make_qk(dtype, dtype, f32, s), "a size of 0");
}

// On any GPU after Ada, the driver compiles the FP8 kernel from PTX for Ada.
TEST_F(GpuProducts, Compute89) {
  if (cuda::device(0).sm < 89) return skip("compute_89 does not run on it");
  const auto context = make_context({.arch = "compute_89"});
  for (ProductCall call : {make_qk(e4m3, e4m3, f16, {1, 4, 2, 130, 200, 128}, ScaleKind::head, ScaleKind::block64),
                           make_gemm(e5m2, e4m3, f32, 100, 130, 1040, ScaleKind::token)}) {
    const ProductErrors e = run(call, context.get());
    EXPECT_LE(e.worst, 1.0) << "largest error " << e.max_abs;
  }
}

TEST_F(GpuProducts, MixedDevicesAreRefused) {
  ProductCall call = make_qk(e4m3, e4m3, f16, {1, 1, 1, 8, 8, 16});
  const Placed placed(call);
  const ProductArgs host(call);
  rapt_qk_args args = placed.args().qk;
  args.k = host.qk.k;
  EXPECT_EQ(rapt_qk(nullptr, &args, nullptr), RAPT_ERROR_INVALID_ARGUMENT);
  EXPECT_NE(std::string(rapt_last_error()).find("k.device = cpu: must be that of q, cuda:0"), std::string::npos)
      << rapt_last_error();
}

}  // namespace
}  // namespace rapt::test
