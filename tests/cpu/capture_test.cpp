// Stream capture over the stand-in driver: which calls may be recorded. What the kernels compute is in tests/gpu.
#include "check/device_tensors.h"
#include "cuda/cuda.h"
#include "fake_driver.h"
#include "stand_in.h"
#include "support.h"

namespace rapt::test {
namespace {

struct PlacedCall {
  Call call;
  std::optional<check::DeviceCall> device;

  explicit PlacedCall(const std::string& line) : call(make(line)) {
    const cuda::ContextScope scope(0, nullptr);
    call.out = check::make_outputs(call.problem);
    device.emplace(0, call.problem, call.in, call.out);
  }
  rapt_status enqueue(rapt_context& context, void* stream) { return rapt_sdpa(&context, &device->args(), stream); }
};

}  // namespace

// Lengths that were not met before need no loading where their kernel is loaded; other kernels are refused.
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

}  // namespace rapt::test
