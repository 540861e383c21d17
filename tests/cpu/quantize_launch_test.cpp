// Tests rapt_quantize on GPU tensors with the stand-in driver of tests/fake_cuda. If a size is 0, there is nothing to
// quantise, but scales and means must still be written. quantize_emulation_test.cpp and tests/gpu check the results of
// kernels.
#include "cuda/cuda.h"
#include "fake_driver.h"
#include "quantize_call.h"
#include "stand_in.h"

namespace rapt::test {
namespace {

constexpr uint64_t rotate_and_smooth = RAPT_QUANTIZE_HADAMARD | RAPT_QUANTIZE_SMOOTH;

QuantizeCall call_of(const std::vector<int64_t>& shape, int32_t scales, uint64_t flags, double percentile) {
  QuantizeCall call;
  call.input = make_tensor(DType::f16, shape);
  call.scales = scales, call.flags = flags;
  if (percentile < 100) call.percentile = percentile;
  return call;
}

// A list of batch + 1 lengths. Nothing reads it in this test.
void pack(QuantizeCall& call, int64_t batch, int64_t longest) {
  call.cu_seqlens = make_tensor(DType::i32, {batch + 1});
  call.max_seqlen = longest;
}

// The number of kernels that a call launches.
long launches_of(rapt_context& context, const cuda::Stream& stream, QuantizeCall& call) {
  if (call.has(RAPT_QUANTIZE_SUPPLIED)) call.descale = make_tensor(DType::f32, call.descale_shape());
  call.poison(DType::e4m3);
  const QuantizeArgs args(call, [](const char*, const HostTensor& t) {  // the stand-in's memory is host memory
    return check::Address{t.data(), {RAPT_DEVICE_CUDA, 0}};
  });
  const long before = fake().launches();
  EXPECT_EQ(rapt_quantize(&context, &args.args, stream.handle()), RAPT_OK) << rapt_last_error();
  return fake().launches() - before;
}

// Runs every kind of call on a stand-in GPU.
void for_each_call(const std::function<void(rapt_context&, const cuda::Stream&, int32_t, uint64_t, double)>& body) {
  on_stand_in(90, [&] {
    rapt_context context(without_cache());
    const cuda::ContextScope scope(0, nullptr);
    const cuda::Stream stream;
    for (int32_t scales = RAPT_SCALE_TENSOR; scales <= RAPT_SCALE_CHANNEL; ++scales)
      for (const auto& [flags, percentile] : {std::pair{uint64_t{0}, 100.0},
                                              {0, 90.0},
                                              {rotate_and_smooth, 100.0},
                                              {rotate_and_smooth, 90.0},
                                              {RAPT_QUANTIZE_SUPPLIED, 100.0},
                                              {rotate_and_smooth | RAPT_QUANTIZE_SUPPLIED, 100.0}}) {
        SCOPED_TRACE(concat("scales ", scales, ", flags ", flags, ", percentile ", percentile));
        body(context, stream, scales, flags, percentile);
      }
  });
}

void expect_dense(rapt_context& context, const cuda::Stream& stream, int32_t scales, uint64_t flags, double percent) {
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{0, 2, 8, 16}, {2, 0, 8, 16}, {2, 2, 0, 16}, {2, 2, 8, 0}, {0, 0, 0, 0}}) {
    QuantizeCall call = call_of(shape, scales, flags, percent);
    const long launches = launches_of(context, stream, call);
    const bool writes =
        (call.mean.present() && call.mean.size() > 0) || (!call.has(RAPT_QUANTIZE_SUPPLIED) && call.descale.size() > 0);
    EXPECT_EQ(launches > 0, writes) << testing::PrintToString(shape);
  }
}

void expect_packed(rapt_context& context, const cuda::Stream& stream, int32_t scales, uint64_t flags, double percent) {
  struct Sizes {
    int64_t total, heads, dim, batch, longest;
  };
  for (const Sizes& s :
       {Sizes{0, 2, 16, 3, 0}, {9, 0, 16, 3, 8}, {9, 2, 0, 3, 8}, {9, 2, 16, 0, 0}, {9, 2, 16, 3, 0}}) {
    SCOPED_TRACE(concat(s.total, " ", s.heads, " ", s.dim, " batch ", s.batch, " longest ", s.longest));
    QuantizeCall call = call_of({s.total, s.heads, s.dim}, scales, flags, percent);
    pack(call, s.batch, s.longest);
    const long launches = launches_of(context, stream, call);
    const bool writes_mean = call.mean.present() && call.mean.size() > 0;
    if (writes_mean || call.descale.size() == 0) {
      EXPECT_EQ(launches > 0, writes_mean);
    }
  }
}

// Both kinds of call run in one process, because they use the same kernels, and compiling takes most of the time.
TEST(QuantizeLaunch, SizesOfZero) {
  for_each_call([](auto&&... call) {
    expect_dense(call...);
    expect_packed(call...);
  });
}

}  // namespace
}  // namespace rapt::test
