// Compares rapt_qk and rapt_gemm on the CPU with float64: accuracy, formats, strides, scales. Also tests error
// sentences, and which kernel is chosen for GPUs. products_code_test.cpp tests the machine code.
#include "operations/products.h"

#include <array>
#include <memory>

#include "base/error.h"
#include "device/device.h"
#include "kernels/products/products_gpu.h"
#include "products_support.h"
#include "rapt/rapt.hpp"

namespace rapt::test {
namespace {

constexpr auto f32 = DType::f32, f16 = DType::f16, bf16 = DType::bf16, e4m3 = DType::e4m3, e5m2 = DType::e5m2,
               sim8 = DType::sim8;

ProductErrors run(ProductCall& call) {
  const rapt_status status = ProductArgs(call).run(nullptr, nullptr);
  EXPECT_EQ(status, RAPT_OK) << rapt_last_error();
  EXPECT_EQ(check::broken_canaries(call.out), 0);
  return status == RAPT_OK ? judge(call) : ProductErrors{infinity, infinity};
}
void expect_right(ProductCall call, const std::string& what = "") {
  const ProductErrors e = run(call);
  EXPECT_LE(e.worst, 1.0) << what << ", largest error " << e.max_abs;
}

// The accuracy of this project's first kernels at 4x8x64 is the minimum for all later kernels. It is half a step of
// f16: for raw products in the range 16 to 32, and for products times 1/8 in the range 2 to 4.
TEST(Qk, AccuracyOfTheFirstKernels) {
  double raw = 0, scaled = 0;
  for (const ScaleKind kind : {ScaleKind::tensor, ScaleKind::head})
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      ProductCall call = make_qk(e4m3, e4m3, f16, {1, 4, 4, 8, 8, 64}, kind, kind, seed);
      raw = std::max(raw, run(call).max_abs);
      call.scale = 0.125;
      scaled = std::max(scaled, run(call).max_abs);
    }
  EXPECT_LE(raw, 0.0078125);
  EXPECT_LE(scaled, 0.0009765625);
  EXPECT_GT(raw, 1e-4);  // there is an error, because f16 rounds
  RecordProperty("raw", std::to_string(raw));
  RecordProperty("scaled", std::to_string(scaled));
}

TEST(Qk, FormatsAndScales) {
  for (const DType q : {f32, f16, bf16, e4m3, e5m2, sim8})
    for (const DType k : {f32, f16, bf16, e4m3, e5m2, sim8})
      expect_right(make_qk(q, k,
                           q == f32    ? f32
                           : k == bf16 ? bf16
                                       : f16,
                           {1, 2, 1, 21, 70, 24}),
                   concat(name_of(q), " ", name_of(k)));
  for (const ScaleKind q :
       {ScaleKind::none, ScaleKind::tensor, ScaleKind::head, ScaleKind::token, ScaleKind::block64, ScaleKind::block128})
    for (const ScaleKind k : {ScaleKind::none, ScaleKind::head, ScaleKind::token, ScaleKind::block64})
      expect_right(make_qk(e4m3, e5m2, f32, {1, 4, 2, 130, 70, 16}, q, k),
                   concat("scales ", static_cast<int>(q), " ", static_cast<int>(k)));
}

TEST(Qk, GroupedHeadsAndStrides) {
  ProductCall call = make_qk(e4m3, e4m3, f32, {2, 6, 2, 33, 65, 64}, ScaleKind::token, ScaleKind::head);
  call.scale = -0.25;
  expect_right(call, "grouped");
  const std::vector<double> expected = [&] {
    run(call);
    std::vector<double> values;
    each_index(call.out.shape, [&](const auto& at) { values.push_back(call.out.at(at)); });
    return values;
  }();
  // The same values in other layouts: heads last, every second element, backwards; out by columns; a descale with gaps.
  ProductCall other = call;
  other.a = copy_with_strides(call.a, {33 * 6 * 128, 128, 6 * 128, 2});
  other.b = copy_with_strides(call.b, {2 * 65 * 64, 65 * 64, -64, -1});
  other.a_descale = copy_with_strides(call.a_descale, {6 * 99, 99, 3});
  other.out = check::make_poisoned(f32, call.out.shape, {6 * 33 * 65, 33 * 65, 1, 33});
  run(other);
  size_t n = 0;
  each_index(other.out.shape, [&](const auto& at) { EXPECT_EQ(other.out.at(at), expected[n++]); });
  // One k for all heads of a batch, with a stride of 0.
  ProductCall broadcast = make_qk(f16, f16, f16, {1, 3, 1, 5, 7, 16});
  broadcast.b.shape[1] = 3, broadcast.b.strides[1] = 0;
  expect_right(broadcast, "stride 0");
}

TEST(Qk, RoundsToF16AndOverflowsToInfinity) {
  ProductCall call = make_qk(f32, f32, f16, {1, 1, 1, 1, 3, 1});
  put(call.a, {0, 0, 0, 0}, 65519.0);
  put(call.b, {0, 0, 0, 0}, 1.0), put(call.b, {0, 0, 1, 0}, 1.0001), put(call.b, {0, 0, 2, 0}, -2.0);
  run(call);
  EXPECT_EQ(call.out.at({0, 0, 0, 0}), 65504.0);
  EXPECT_EQ(call.out.at({0, 0, 0, 1}), infinity);
  EXPECT_EQ(call.out.at({0, 0, 0, 2}), -infinity);
}

TEST(Qk, WhatIsNotFiniteStaysInItsRows) {
  ProductCall call = make_qk(e4m3, e4m3, f32, {1, 1, 1, 40, 70, 32});
  put(call.a, {0, 0, 3, 5}, nan);
  put(call.b, {0, 0, 66, 31}, nan);
  ASSERT_EQ(ProductArgs(call).run(nullptr, nullptr), RAPT_OK);
  each_index(call.out.shape, [&](const auto& at) {
    EXPECT_EQ(std::isnan(call.out.at(at)), at[2] == 3 || at[3] == 66) << at[2] << " " << at[3];
  });
}

TEST(Qk, SizesOfZero) {
  for (const QkShape& s : {QkShape{0, 2, 2, 4, 4, 8}, QkShape{1, 0, 0, 4, 4, 8}, QkShape{1, 2, 2, 0, 4, 8},
                           QkShape{1, 2, 2, 4, 0, 8}, QkShape{1, 2, 2, 4, 4, 0}})
    expect_right(make_qk(f16, f16, f32, s));
  ProductCall deep = make_qk(f16, f16, f32, {1, 1, 1, 2, 2, 0});
  run(deep);
  EXPECT_EQ(deep.out.at({0, 0, 1, 1}), 0.0);
}

TEST(Qk, SameBitsOnAnyNumberOfThreads) {
  ProductCall one = make_qk(e4m3, e4m3, f16, {2, 3, 3, 100, 130, 72}, ScaleKind::token, ScaleKind::block64), many = one;
  many.out = check::make_poisoned(f16, one.out.shape, one.out.strides);
  for (auto [call, threads] : {std::pair{&one, 1}, {&many, 5}}) {
    const v0::Context context(v0::ContextOptions{.num_threads = threads});
    ASSERT_EQ(ProductArgs(*call).run(context.get(), nullptr), RAPT_OK) << rapt_last_error();
  }
  expect_same_bits(one.out, many.out);
}

TEST(Gemm, FormatsSizesAndLayouts) {
  for (const bool k_contiguous : {true, false})
    for (const ScaleKind scales : {ScaleKind::none, ScaleKind::tensor, ScaleKind::token})
      for (const auto& [m, n, k] :
           {std::array<int64_t, 3>{1, 1, 1}, {16, 8, 32}, {33, 65, 17}, {35, 5, 600}, {5, 70, 1100}})
        for (const DType a : {e4m3, e5m2, f16})
          expect_right(make_gemm(a, e4m3, a == e5m2 ? bf16 : f16, m, n, k, scales, k_contiguous),
                       concat(name_of(a), " ", m, "x", n, "x", k, " scales ", static_cast<int>(scales)));
}

// Parts of 512 products are summed separately. So the error grows less with the number of products than with one
// running sum.
TEST(Gemm, DeepSumsStayExact) {
  ProductCall call = make_gemm(f32, f32, f32, 4, 4, 1 << 16);
  fill(call.a, [](const auto& at) { return 1.0 + check::uniform(3, 0, static_cast<uint64_t>(at[1])) * 1e-3; });
  fill(call.b, [](const auto& at) { return 1.0 + check::uniform(4, 0, static_cast<uint64_t>(at[0])) * 1e-3; });
  ASSERT_EQ(ProductArgs(call).run(nullptr, nullptr), RAPT_OK);
  const ProductReference r = reference(call, {1, 2});
  EXPECT_LE(std::fabs(call.out.at({1, 2}) - r.value) / r.value, 4e-6);
  float running = 0;
  for (int64_t d = 0; d < 1 << 16; ++d)
    running += static_cast<float>(call.a.at({1, d})) * static_cast<float>(call.b.at({d, 2}));
  EXPECT_GT(std::fabs(running - r.value) / r.value,
            4e-6);  // if one running sum were exact, the test would prove nothing
}

TEST(Gemm, SizesOfZero) {
  for (const auto& [m, n, k] : {std::array<int64_t, 3>{0, 4, 4}, {4, 0, 4}, {4, 4, 0}})
    expect_right(make_gemm(e4m3, e4m3, f16, m, n, k, k == 0 ? ScaleKind::none : ScaleKind::tensor));
}

// --- refusals -------------------------------------------------------------------------------------------------------

using Change = std::function<void(ProductCall& call, ProductArgs& args)>;

void expect_refused(ProductCall call, const Change& change, const std::string& sentence) {
  ProductCall* changed = &call;
  auto args = std::make_unique<ProductArgs>(*changed);
  change(call, *args);
  const rapt_status status = args->run(nullptr, nullptr);
  EXPECT_EQ(status, RAPT_ERROR_INVALID_ARGUMENT) << sentence;
  EXPECT_NE(std::string(rapt_last_error()).find(sentence), std::string::npos)
      << rapt_last_error() << "\n  " << sentence;
  each_index(call.out.shape, [&](const auto& at) {
    int64_t index = 0;
    for (size_t d = 0; d < at.size(); ++d) index += at[d] * call.out.strides[d];
    EXPECT_TRUE(check::is_poison(call.out, index)) << sentence;
  });
}

// Changes one tensor. The arguments are created afterwards.
std::function<void(ProductCall&, ProductArgs&)> with(const std::function<void(ProductCall&)>& change) {
  return [change](ProductCall& call, ProductArgs& args) {
    change(call);
    std::destroy_at(&args);
    std::construct_at(&args, call);
  };
}

TEST(Qk, RefusesBySentence) {
  const auto make = [] {  // makes a new call, because copies of a call share their elements
    return make_qk(e4m3, e4m3, f16, {2, 4, 2, 70, 9, 16}, ScaleKind::block64, ScaleKind::tensor);
  };
  const ProductCall call = make();
  const std::vector<std::pair<Change, std::string>> table = {
      {[](auto&, auto& a) { a.qk.q = nullptr; }, "q = NULL"},
      {[](auto&, auto& a) { a.qk.out = nullptr; }, "out = NULL"},
      {[](auto&, auto& a) { a.qk.struct_size = 8; }, "struct_size = 8"},
      {[](auto&, auto& a) { a.qk.has = 4; }, "has = 4: unknown bits 4"},
      {[](auto&, auto& a) { a.qk.flags = 1; }, "flags = 1"},
      {[](auto&, auto& a) { a.qk.has = RAPT_QK_HAS_SCALE, a.qk.scale = nan; }, "scale = nan: must be a finite float"},
      {[](auto&, auto& a) { a.qk.has = RAPT_QK_HAS_SCALE, a.qk.scale = 1e-60; }, "scale = 1e-60: too small"},
      {[](auto&, auto& a) { a.qk.q_scales = RAPT_SCALE_NONE; }, "q_descale: given, but q_scales says"},
      {[](auto&, auto& a) { a.qk.q_scales = 9; }, "q_scales = 9: not a rapt_scale_kind"},
      {[](auto&, auto& a) { a.qk.k_descale = nullptr; }, "k_scales = 1: given without k_descale"},
      {[](auto&, auto& a) { a.qk.q_scales = RAPT_SCALE_CHANNEL; }, "must be tensor, head, token, block64 or block128"},
      {[](auto&, auto& a) { a.qk.q_scales = RAPT_SCALE_TOKEN; }, "q_descale.shape = [2, 4, 2]: must be [2, 4, 70]"},
      {with([](auto& c) {
         c.a_descale.set({1, 3, 1}, nan);
       }),
       "q_descale: element 15 is nan"},
      {with([](auto& c) {
         c.a_descale.set({0, 1, 0}, -1);
       }),
       "q_descale: element 2 is -1: must be finite and not"},
      {with([](auto& c) { c.b_descale.set({0}, infinity); }), "k_descale: element 0 is inf"},
      {with([](auto& c) { c.b_descale = make_tensor(DType::f16, {1}); }), "k_descale.dtype = f16: must be f32"},
      {with([](auto& c) { c.b_descale = make_tensor(DType::f32, {2}); }), "k_descale.shape = [2]: per-tensor"},
      {with([](auto& c) { c.b = make_tensor(f16, c.b.shape); }), "k_descale: given, but k is f16: scales need FP8"},
      {with([](auto& c) {
         c.b = make_tensor(e4m3, {2, 3, 9, 16});
       }),
       "k.shape[1] = 3: must divide q's heads, 4"},
      {with([](auto& c) {
         c.b = make_tensor(e4m3, {1, 2, 9, 16});
       }),
       "k.shape[0] = 1: must be q's batch, 2"},
      {with([](auto& c) {
         c.b = make_tensor(e4m3, {2, 2, 9, 8});
       }),
       "k.shape[3] = 8: must be q's head_dim, 16"},
      {with([](auto& c) {
         c.b = make_tensor(e4m3, {2, 9, 16});
       }),
       "k.rank = 3"},
      {with([](auto& c) { c.a = make_tensor(DType::u8, c.a.shape); }), "q.dtype = u8: must be f32, f16"},
      {[](auto&, auto& a) { a.qk.out = a.qk.q; }, "out.dtype = e4m3"},
  };
  for (const auto& [change, sentence] : table) expect_refused(make(), change, sentence);

  ProductCall shape = call;
  shape.out = check::make_poisoned(f16, {2, 4, 70, 8}, {2240, 560, 8, 1});
  expect_refused(
      shape, [](auto&, auto&) {}, "out.shape = [2, 4, 70, 8]: must be [batch, heads_q, seqlen_q, seqlen_k]");
  shape.out = check::make_poisoned(f16, {2, 4, 70, 9}, {0, 630, 9, 1});
  expect_refused(
      shape, [](auto&, auto&) {}, "an output must not overlap itself");
  EXPECT_EQ(rapt_qk(nullptr, nullptr, nullptr), RAPT_ERROR_INVALID_ARGUMENT);
  int stream = 0;
  EXPECT_EQ(ProductArgs(call).run(nullptr, &stream), RAPT_ERROR_INVALID_ARGUMENT);
  EXPECT_NE(std::string(rapt_last_error()).find("must be NULL for CPU tensors"), std::string::npos);
}

TEST(Gemm, RefusesBySentence) {
  const ProductCall call = make_gemm(e4m3, e4m3, f16, 6, 10, 32, ScaleKind::token);
  const std::vector<std::pair<Change, std::string>> table = {
      {[](auto&, auto& a) { a.gemm.b = nullptr; }, "b = NULL"},
      {[](auto&, auto& a) { a.gemm.has = 1; }, "has = 1: unknown bits 1"},
      {[](auto&, auto& a) { a.gemm.a_scales = RAPT_SCALE_HEAD; }, "a_scales = 2: must be tensor or token"},
      {with([](auto& c) {
         c.b = make_tensor(e4m3, {31, 10});
       }),
       "b.shape[0] = 31: must be a's columns, 32"},
      {with([](auto& c) {
         c.b = make_tensor(e4m3, {1, 1, 32, 10});
       }),
       "b.rank = 4"},
      {with([](auto& c) { c.a_descale = make_tensor(DType::f32, {10}); }), "a_descale.shape = [10]: must be [6]"},
  };
  for (const auto& [change, sentence] : table) expect_refused(call, change, sentence);
  ProductCall overlap = make_gemm(f16, f16, f16, 8, 8, 8);
  overlap.a = overlap.out;
  expect_refused(
      overlap, [](auto&, auto&) {}, "out: overlaps a in memory");
}

TEST(ProductsApi, FromCpp) {
  std::vector<E4m3> q(2 * 3 * 16, E4m3{0x38}), k(2 * 5 * 16, E4m3{0x40});  // 1 and 2
  std::vector<float> out(2 * 3 * 5), scale = {0.5f};
  qk({q.data(), {1, 2, 3, 16}}, {k.data(), {1, 2, 5, 16}}, {out.data(), {1, 2, 3, 5}},
     {.scale = 0.25, .q_descale = {scale.data(), {1}}, .q_scales = Scales::tensor});
  for (const float x : out) EXPECT_EQ(x, 4.0f);
  std::vector<float> product(3 * 5);
  gemm({q.data(), {3, 16}}, {k.data(), {16, 5}, {1, 16}}, {product.data(), {3, 5}});
  for (const float x : product) EXPECT_EQ(x, 32.0f);
  const std::vector<float>& fixed = product;
  EXPECT_THROW(gemm({q.data(), {3, 16}}, {k.data(), {16, 5}}, {fixed.data(), {3, 5}}), Exception);
}

// --- which kernel a GPU gets
// ------------------------------------------------------------------------------------------

ProductConfig config_on(const char* device, const ProductCall& call) {
  const ProductArgs args(call);
  return product_config(call.gemm ? product_of(args.gemm, nullptr) : product_of(args.qk, nullptr),
                        device_preset(device));
}

TEST(ProductKernels, TensorCoresWhereCodesLieSideBySide) {
  const ProductCall call = make_gemm(e4m3, e5m2, f16, 32, 48, 64);
  EXPECT_TRUE(config_on("sm_89", call).tensor_cores);
  EXPECT_TRUE(config_on("compute_89", call).tensor_cores);
  EXPECT_TRUE(config_on("sm_120", call).tensor_cores);
  EXPECT_FALSE(config_on("sm_80", call).tensor_cores);
  EXPECT_FALSE(config_on("sm_89", make_gemm(e4m3, e4m3, f16, 32, 48, 64, ScaleKind::none, false)).tensor_cores);
  EXPECT_FALSE(config_on("sm_89", make_gemm(e4m3, e4m3, f16, 32, 48, 40)).tensor_cores);
  EXPECT_FALSE(config_on("sm_89", make_gemm(e4m3, f16, f16, 32, 48, 64)).tensor_cores);
  EXPECT_FALSE(config_on("sm_89", make_gemm(sim8, sim8, f16, 32, 48, 64)).tensor_cores);
  ProductCall shifted = make_qk(e4m3, e4m3, f16, {1, 2, 2, 8, 8, 64});
  EXPECT_TRUE(config_on("sm_89", shifted).tensor_cores);
  shifted.a = make_tensor(e4m3, {1, 2, 8, 72});
  shifted.a.shape[3] = 64;  // rows are 72 codes apart, so they do not begin at multiples of 16
  EXPECT_FALSE(config_on("sm_89", shifted).tensor_cores);
  // The stride of a dimension of size 1 has no meaning.
  ProductCall row = make_gemm(e4m3, e4m3, f16, 1, 48, 64);
  row.a.strides[0] = 7;
  EXPECT_TRUE(config_on("sm_89", row).tensor_cores);
}

TEST(ProductKernels, DeepProductsAreSummedInParts) {
  EXPECT_EQ(config_on("sm_89", make_gemm(e4m3, e4m3, f16, 16, 16, 512)).promotion_interval, 0);
  EXPECT_EQ(config_on("sm_89", make_gemm(e4m3, e4m3, f16, 16, 16, 528)).promotion_interval, product_promotion_interval);
}

}  // namespace
}  // namespace rapt::test
