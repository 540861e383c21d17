// Stream capture with the stand-in driver: tests which calls can be recorded. tests/gpu checks the results of kernels.
#include "cuda/cuda.h"
#include "fake_driver.h"
#include "placed_call.h"
#include "runtime/gpu.h"
#include "stand_in.h"

namespace rapt::test {

// During a capture, a call with new lengths works if its kernel is already loaded. A call that needs another kernel is
// refused.
TEST(Capture, NewLengthsOfALoadedKernel) {
  on_stand_in(90, [] {
    rapt_context context(without_cache());
    PlacedCall first("f16 b1 h2 q256 k256 d64 lse"), longer("f16 b1 h2 q256 k320 d64 lse"),
        unknown("f16 b1 h2 q256 k256 d128 lse");
    const cuda::ContextScope scope(0, nullptr);
    const cuda::Stream stream;
    ASSERT_EQ(rapt_prepare(&context, &first.device->args(), stream.handle()), RAPT_OK) << rapt_last_error();
    const long loaded = fake().calls("cuLibraryLoadData");
    cuda::Graph::begin(stream.handle());
    EXPECT_EQ(longer.enqueue(context, stream.handle()), RAPT_OK) << rapt_last_error();
    EXPECT_EQ(rapt_prepare(&context, &longer.device->args(), stream.handle()), RAPT_OK) << rapt_last_error();
    EXPECT_EQ(unknown.enqueue(context, stream.handle()), RAPT_ERROR_INVALID_ARGUMENT);
    EXPECT_NE(std::string(rapt_last_error()).find("not loaded yet"), std::string::npos) << rapt_last_error();
    const cuda::Graph graph(stream.handle());
    EXPECT_EQ(fake().calls("cuLibraryLoadData"), loaded);
    EXPECT_EQ(fake().launches(), 0) << "recorded, not run";
    graph.replay(stream.handle());
    EXPECT_EQ(fake().launches(), 1);
  });
}

// Each call has one more key than the call before, as in decoding. Kernels are loaded only for the first call, and one
// plan is made for each class of lengths. This holds for recorded and for executed calls.
TEST(Capture, TenThousandGrowingLengths) {
  on_stand_in(90, [] {
    rapt_context context(without_cache());
    PlacedCall cache("f16 b1 h2 q1 k10257 d64 lse");
    const cuda::ContextScope scope(0, nullptr);
    const cuda::Stream stream;
    rapt_sdpa_args& args = cache.device->args();
    rapt_tensor k = *args.k, v = *args.v;
    int64_t shape[4] = {1, 2, 257, 64};
    k.shape = v.shape = shape, args.k = &k, args.v = &v;
    for (const int64_t keys : {257, 10256}) {  // few keys and many keys use different kernels
      shape[2] = keys;
      ASSERT_EQ(rapt_prepare(&context, &args, stream.handle()), RAPT_OK) << rapt_last_error();
    }
    const long loaded = fake().calls("cuLibraryLoadData");
    for (const bool captured : {true, false}) {
      if (captured) cuda::Graph::begin(stream.handle());
      for (int64_t i = 0; i < 10000; ++i) {
        shape[2] = 257 + i;
        ASSERT_EQ(rapt_sdpa(&context, &args, stream.handle()), RAPT_OK) << shape[2] << ": " << rapt_last_error();
      }
      if (captured) const cuda::Graph graph(stream.handle());
    }
    EXPECT_EQ(fake().launches(), 10000);
    EXPECT_LE(loaded, 4);
    EXPECT_EQ(fake().calls("cuLibraryLoadData"), loaded);
    EXPECT_LE(context.impl.gpu().known_plans(), 8u * 6) << "257 to 10256 keys are in six octaves";
  });
}

}  // namespace rapt::test
