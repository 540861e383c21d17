// Tests a plan of two kernels that share a workspace (tests/cpu/two_steps.h). The library runs it as an attention call,
// with streams, threads and graphs, and while the workspace grows.
#include <array>
#include <atomic>
#include <thread>

#include "../cpu/two_steps.h"
#include "gpu_support.h"

namespace rapt::test {
namespace {

constexpr const char *small_line = "f32 b2 h4:2 q5 k300 d32", *large_line = "f32 b2 h4:2 q300 k301 d32:48";

class GpuWorkspace : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    ContextOptions options;
    options.family = &two_steps;
    context_ = make_context(options);
  }
  rapt_context* context() { return context_.get(); }
  // A call whose result was computed without other work, and checked.
  Call computed(const char* line, uint64_t seed) {
    Call call = make(line);
    fill_hash(call, seed);
    run_gpu(call, context());
    expect_oracle(call);
    return call;
  }

 private:
  std::unique_ptr<rapt_context> context_;
};

}  // namespace

TEST_F(GpuWorkspace, TwoKernelsComputeACall) {
  for (const char* line : {small_line, large_line, "f32 b1 h1 q1 k1 d8", small_line}) computed(line, 1);
}

TEST_F(GpuWorkspace, CapturedOncePrepared) {
  Call call = make(small_line), large = make(large_line);
  fill_hash(call, 1), fill_hash(large, 2);
  GpuCall gpu(call), larger(large);
  const cuda::Stream stream;
  ASSERT_EQ(rapt_prepare(context(), &gpu.args(), stream.handle()), RAPT_OK) << rapt_last_error();
  cuda::Graph::begin(stream.handle());
  gpu.expect_enqueue(stream.handle(), context());
  EXPECT_EQ(larger.enqueue(stream.handle(), context()), RAPT_ERROR_INVALID_ARGUMENT) << "needs more memory";
  const cuda::Graph graph(stream.handle());
  larger.expect_enqueue(stream.handle(), context());  // the workspace grows, but the graph keeps its old memory
  for (uint64_t seed : {3u, 4u}) {
    fill_hash(call, seed);
    gpu.restart();
    graph.replay(stream.handle());
    stream.synchronize();
    Call alone = call;
    expect_same_bits(gpu.result(), run_gpu(alone, context()));
    expect_oracle(alone);
  }
  expect_oracle(larger.result());
}

TEST_F(GpuWorkspace, GrowsWhileKernelsAreOnTheirWay) {
  const cuda::Stream stream;
  std::vector<std::unique_ptr<GpuCall>> calls;
  for (const int rows : {1, 40, 2, 300, 3, 900}) {
    Call call = make(concat("f32 b1 h4 q", rows, " k500 d64"));
    fill_hash(call, static_cast<uint64_t>(rows));
    calls.push_back(std::make_unique<GpuCall>(call));
  }
  for (const auto& call : calls) call->expect_enqueue(stream.handle(), context());
  stream.synchronize();
  for (const auto& call : calls) expect_oracle(call->result());
}

// Two streams run at once, and two threads use each stream. Kernels of two calls must not mix on a stream, and streams
// must not share a workspace.
TEST_F(GpuWorkspace, StreamsAndThreadsAtOnce) {
  std::array<Call, 4> expected;
  for (size_t n = 0; n < 4; ++n) expected[n] = computed(n % 2 == 0 ? small_line : large_line, n + 1);
  const std::array<cuda::Stream, 2> streams;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (size_t n = 0; n < 4; ++n)
    threads.emplace_back([&, n] {
      const cuda::ContextScope scope(0, nullptr);
      GpuCall gpu(expected[n]);
      for (int i = 0; i < 50; ++i) {
        gpu.restart();
        for (int repeat = 0; repeat < 5; ++repeat)
          wrong += gpu.enqueue(streams[n / 2].handle(), context()) == RAPT_OK ? 0 : 1;
        streams[n / 2].synchronize();
        wrong += bits(gpu.result().out.out) == bits(expected[n].out.out) ? 0 : 1;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace rapt::test
