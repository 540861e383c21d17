// Tests calls with graphs, streams, threads, contexts, several devices and fork. Every result is compared bit for bit
// with the same call in a simple setting. Other suites compare such calls with the oracle.
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <memory>
#include <thread>

#include "base/error.h"
#include "gpu_support.h"

namespace rapt::test {
namespace {

constexpr const char* lines[] = {"f16 b1 h4:2 q96 k96 d64 causal lse", "bf16 b2 h4:2 q1 k2000 d128 lse",
                                 "f16 varlen=17:40,0:5,90:90 h2 d64 lse", "f32 b1 h2 q5 k700 d16 lse",
                                 "e4m3 out=f16 b1 h2 q70 k90 d32 scales=head lse"};

// Problem number n with its own inputs. Its result was computed without other work, and checked.
Call computed(size_t n) {
  Call call = make(lines[n % std::size(lines)]);
  fill_hash(call, n + 1);
  run_gpu(call);
  expect_oracle(call);
  return call;
}

class GpuGraph : public GpuTest {
 protected:
  // Records one call.
  static std::unique_ptr<cuda::Graph> recorded(GpuCall& call, const cuda::Stream& stream, rapt_context* context) {
    cuda::Graph::begin(stream.handle());
    call.expect_enqueue(stream.handle(), context);
    return std::make_unique<cuda::Graph>(stream.handle());
  }
  static void replay(const cuda::Graph& graph, const cuda::Stream& stream) {
    graph.replay(stream.handle());
    stream.synchronize();
  }
};

class GpuStreams : public GpuTest {};
class GpuThreads : public GpuTest {
 protected:
  // The number of failures of 8 threads; each repeats its own problem `times` times.
  static int failures(int times, const std::function<rapt_context*(size_t thread)>& context_of) {
    std::vector<Call> expected;
    for (size_t n = 0; n < 8; ++n) expected.push_back(computed(n));
    std::atomic<int> count{0};
    std::vector<std::thread> threads;
    for (size_t n = 0; n < 8; ++n)
      threads.emplace_back([&, n] {
        try {
          for (int i = 0; i < times; ++i) count += repeats_on_gpu(expected[n], context_of(n)) ? 0 : 1;
        } catch (const Error&) {
          ++count;
        }
      });
    for (std::thread& thread : threads) thread.join();
    return count;
  }
};

class GpuTwoDevices : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (!IsSkipped() && cuda::device_count() < 2) skip("one GPU");
  }
};

}  // namespace

TEST_F(GpuGraph, ReplaysOnChangedInputs) {
  for (const char* line : lines) {
    SCOPED_TRACE(line);
    Call call = make(line);
    fill_hash(call, 1);
    GpuCall gpu(call);
    const cuda::Stream stream;
    ASSERT_EQ(rapt_prepare(nullptr, &gpu.args(), stream.handle()), RAPT_OK) << rapt_last_error();
    const auto graph = recorded(gpu, stream, nullptr);
    EXPECT_TRUE((gpu.result(), untouched(gpu.call().out.out))) << "recording ran the kernel";
    for (uint64_t seed : {1u, 2u, 3u}) {
      fill_hash(call, seed);
      gpu.restart();
      replay(*graph, stream);
      Call alone = call;
      expect_same_bits(gpu.result(), run_gpu(alone));
      expect_oracle(alone);
    }
  }
}

TEST_F(GpuGraph, RecordsSeveralCallsInOrder) {
  Call first = make(lines[0]), second = make(lines[0]);
  fill_hash(first, 1), fill_hash(second, 2);
  GpuCall a(first), b(second);
  const cuda::Stream stream;
  ASSERT_EQ(rapt_prepare(nullptr, &a.args(), stream.handle()), RAPT_OK) << rapt_last_error();
  cuda::Graph::begin(stream.handle());
  a.expect_enqueue(stream.handle());
  b.expect_enqueue(stream.handle());
  a.expect_enqueue(stream.handle());
  const cuda::Graph graph(stream.handle());
  for (int i = 0; i < 3; ++i) replay(graph, stream);
  expect_same_bits(a.result(), run_gpu(first));
  expect_same_bits(b.result(), run_gpu(second));
}

TEST_F(GpuGraph, AnUnpreparedCallIsRefusedAndTheCaptureGoesOn) {
  Call call = make(lines[0]), other = make("bf16 b1 h2 q40 k70 d48 softcap=3 causal lse");
  fill_hash(call), fill_hash(other);
  const auto context = make_context();
  GpuCall prepared(call), cold(other);
  const cuda::Stream stream;
  ASSERT_EQ(rapt_prepare(context.get(), &prepared.args(), stream.handle()), RAPT_OK) << rapt_last_error();
  cuda::Graph::begin(stream.handle());
  EXPECT_EQ(cold.enqueue(stream.handle(), context.get()), RAPT_ERROR_INVALID_ARGUMENT);
  EXPECT_NE(cold.call().message.find("rapt_prepare"), std::string::npos) << cold.call().message;
  EXPECT_NE(cold.call().message.find("d48"), std::string::npos) << "the problem is named: " << cold.call().message;
  EXPECT_EQ(rapt_prepare(context.get(), &cold.args(), stream.handle()), RAPT_ERROR_INVALID_ARGUMENT)
      << "preparing on the captured stream";
  prepared.expect_enqueue(stream.handle(), context.get());
  const cuda::Graph graph(stream.handle());
  replay(graph, stream);
  expect_same_bits(prepared.result(), run_gpu(call));
  cold.result();
  EXPECT_TRUE(untouched(cold.call().out.out) && untouched(cold.call().out.lse));
  // A call prepared outside the capture is recorded.
  ASSERT_EQ(rapt_prepare(context.get(), &cold.args(), stream.handle()), RAPT_OK) << rapt_last_error();
  const auto later = recorded(cold, stream, context.get());
  replay(*later, stream);
  expect_same_bits(cold.result(), run_gpu(other));
}

// If a call with new lengths needs only a loaded kernel, it is recorded.
TEST_F(GpuGraph, NewLengthsOfALoadedKernelAreRecorded) {
  Call call = make("f16 b1 h2 q256 k256 d64 lse"), other = make("f16 b1 h2 q256 k320 d64 lse");
  fill_hash(call), fill_hash(other);
  const auto context = make_context();
  GpuCall prepared(call), longer(other);
  const cuda::Stream stream;
  ASSERT_EQ(rapt_prepare(context.get(), &prepared.args(), stream.handle()), RAPT_OK) << rapt_last_error();
  const auto graph = recorded(longer, stream, context.get());
  replay(*graph, stream);
  expect_same_bits(longer.result(), run_gpu(other));
}

TEST_F(GpuGraph, CheckingContentsIsRefusedDuringCapture) {
  Call call = make(lines[2]);
  fill_hash(call);
  GpuCall gpu(call);
  const cuda::Stream stream;
  ASSERT_EQ(rapt_prepare(nullptr, &gpu.args(), stream.handle()), RAPT_OK) << rapt_last_error();
  gpu.args().flags |= RAPT_CHECK_CONTENTS;
  cuda::Graph::begin(stream.handle());
  EXPECT_EQ(gpu.enqueue(stream.handle()), RAPT_ERROR_INVALID_ARGUMENT);
  EXPECT_NE(gpu.call().message.find("captured"), std::string::npos) << gpu.call().message;
  const cuda::Graph graph(stream.handle());  // an empty one
  gpu.result();
  EXPECT_TRUE(untouched(gpu.call().out.out));
}

TEST_F(GpuStreams, TwoAtOnce) {
  for (size_t n = 0; n + 1 < std::size(lines); ++n) {
    const Call expected_a = computed(n), expected_b = computed(n + 1);
    GpuCall a(expected_a), b(expected_b);
    const cuda::Stream stream_a, stream_b;
    for (int i = 0; i < 100; ++i) {
      a.expect_enqueue(stream_a.handle());
      b.expect_enqueue(stream_b.handle());
    }
    stream_a.synchronize();
    stream_b.synchronize();
    expect_same_bits(a.result(), expected_a);
    expect_same_bits(b.result(), expected_b);
  }
}

TEST_F(GpuStreams, DefaultStreams) {
  const Call expected = computed(0);
  for (size_t handle : {0, 1, 2}) {  // null, legacy, per thread
    GpuCall gpu(expected);
    gpu.expect_enqueue(reinterpret_cast<void*>(handle));
    cuda::copy_to_host(gpu.call().out.out.data(), gpu.args().out->data, 2, reinterpret_cast<void*>(handle));  // waits
    expect_same_bits(gpu.result(), expected);
  }
}

TEST_F(GpuStreams, OrderWithinAStream) {  // the second call overwrites the output of the first
  const Call expected = computed(0);
  Call other = expected;
  other.in.q = make_tensor(DType::f16, expected.in.q.shape);
  fill_hash(other.in.q, 99);
  GpuCall gpu(expected), input(other);
  const cuda::Stream stream;
  rapt_sdpa_args into = input.args();
  into.out = gpu.args().out;
  into.lse = gpu.args().lse;
  for (int i = 0; i < 50; ++i) {
    ASSERT_EQ(rapt_sdpa(nullptr, &into, stream.handle()), RAPT_OK) << rapt_last_error();
    gpu.expect_enqueue(stream.handle());
  }
  stream.synchronize();
  expect_same_bits(gpu.result(), expected);
}

namespace {

// The output of each call is the query of the next call, with two buffers. So there are reads after writes, and writes
// after reads.
std::vector<std::byte> ping_pong(const Call& call, int rounds, bool wait_between) {
  const std::array<int64_t, 4> shape{call.in.q.shape[0], call.in.q.shape[1], call.in.q.shape[2], call.in.q.shape[3]};
  const size_t bytes = static_cast<size_t>(call.in.q.size()) * static_cast<size_t>(bytes_of(call.problem.q));
  std::array<cuda::Buffer, 4> buffers{cuda::Buffer(bytes), cuda::Buffer(bytes), cuda::Buffer(bytes),
                                      cuda::Buffer(bytes)};
  buffers[0].upload(call.in.q.data(), bytes);
  buffers[2].upload(call.in.k.data(), bytes);
  buffers[3].upload(call.in.v.data(), bytes);
  std::array<rapt_tensor, 4> tensors;
  for (size_t i = 0; i < 4; ++i)
    tensors[i] = {buffers[i].data(), first_gpu, static_cast<int32_t>(call.problem.q), 4, shape.data(), nullptr};
  const cuda::Stream stream;
  for (size_t i = 0; i < static_cast<size_t>(rounds); ++i) {
    rapt_sdpa_args args{};
    args.struct_size = sizeof args;
    args.q = &tensors[i % 2], args.out = &tensors[1 - i % 2], args.k = &tensors[2], args.v = &tensors[3];
    EXPECT_EQ(rapt_sdpa(nullptr, &args, stream.handle()), RAPT_OK) << rapt_last_error();
    if (wait_between) stream.synchronize();
  }
  stream.synchronize();
  std::vector<std::byte> result(bytes);
  buffers[rounds % 2].download(result.data(), bytes);
  return result;
}

}  // namespace

TEST_F(GpuStreams, EachCallWaitsForTheOneBefore) {
  for (const char* line :
       {"f16 b1 h8 q512 k512 d64", "f16 b1 h1 q16 k16 d64", "bf16 b4 h16 q300 k300 d128", "f32 b1 h4 q100 k100 d64"}) {
    SCOPED_TRACE(line);
    Call call = make(line);
    fill_hash(call);
    const auto expected = ping_pong(call, 41, true);
    for (int i = 0; i < 10; ++i) EXPECT_TRUE(ping_pong(call, 41, false) == expected) << "repeat " << i;
  }
}

TEST_F(GpuThreads, OnTheDefaultContext) {
  EXPECT_EQ(failures(10, [](size_t) { return nullptr; }), 0);
}

TEST_F(GpuThreads, OnOneContextThatHasLoadedNothing) {
  const auto context = make_context();
  EXPECT_EQ(failures(5, [&](size_t) { return context.get(); }), 0);
}

TEST_F(GpuThreads, EachWithItsOwnContext) {
  std::vector<std::unique_ptr<rapt_context>> contexts;
  for (size_t n = 0; n < 8; ++n) contexts.push_back(make_context());
  EXPECT_EQ(failures(5, [&](size_t n) { return contexts[n].get(); }), 0);
}

TEST_F(GpuThreads, ContextsComeAndGo) {
  const Call expected = computed(0);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(repeats_on_gpu(expected, make_context().get())) << i;
}

TEST_F(GpuThreads, AForkedChildIsToldSo) {
  const Call expected = computed(0);
  GpuCall gpu(expected);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    const rapt_status status = rapt_sdpa(nullptr, &gpu.args(), nullptr);
    const std::string message = rapt_last_error();
    const ssize_t written = write(ends[1], message.data(), message.size());
    _exit(status == RAPT_ERROR_ENVIRONMENT && written == static_cast<ssize_t>(message.size()) ? 0 : 1);
  }
  close(ends[1]);
  char text[1024] = "";
  EXPECT_GT(read(ends[0], text, sizeof text - 1), 0);
  close(ends[0]);
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << text;
  EXPECT_NE(std::string(text).find("fork"), std::string::npos) << text;
  EXPECT_TRUE(repeats_on_gpu(expected, nullptr)) << "the parent after its child";
}

TEST_F(GpuTwoDevices, TensorsOfEachInTurn) {
  const Call expected = computed(0);
  for (int i = 0; i < 10; ++i)
    for (int device : {1, 0}) {
      const cuda::ContextScope scope(device, nullptr);
      const cuda::Stream stream;
      GpuCall gpu(expected, device);
      gpu.expect_enqueue(stream.handle());
      stream.synchronize();
      expect_same_bits(gpu.result(), expected);
    }
}

TEST_F(GpuTwoDevices, BothAtOnceFromOneThread) {
  const Call expected_a = computed(0), expected_b = computed(1);
  GpuCall a(expected_a);
  const cuda::Stream stream_a;
  const cuda::ContextScope scope(1, nullptr);  // GPU 1 is current, and calls on GPU 0 still work
  GpuCall b(expected_b, 1);
  const cuda::Stream stream_b;
  for (int i = 0; i < 50; ++i) {
    a.expect_enqueue(stream_a.handle());
    b.expect_enqueue(stream_b.handle());
  }
  stream_b.synchronize();
  expect_same_bits(b.result(), expected_b);
  const cuda::ContextScope back(0, nullptr);
  stream_a.synchronize();
  expect_same_bits(a.result(), expected_a);
}

TEST_F(GpuTwoDevices, AStreamOfTheOtherIsRefused) {
  Call call = make(lines[0]);
  fill_hash(call);
  GpuCall gpu(call);
  const cuda::ContextScope scope(1, nullptr);
  const cuda::Stream stream;
  EXPECT_EQ(gpu.enqueue(stream.handle()), RAPT_ERROR_INVALID_ARGUMENT);
  EXPECT_NE(gpu.call().message.find("cuda:1"), std::string::npos) << gpu.call().message;
  EXPECT_NE(gpu.call().message.find("cuda:0"), std::string::npos) << gpu.call().message;
  const cuda::ContextScope back(0, nullptr);
  gpu.result();
  EXPECT_TRUE(untouched(gpu.call().out.out));
}

TEST_F(GpuTwoDevices, TensorsOfTwoAreRefused) {
  Call call = make(lines[0]);
  fill_hash(call);
  GpuCall gpu(call);
  rapt_tensor k = *gpu.args().k;
  k.device.index = 1;
  gpu.args().k = &k;
  EXPECT_EQ(gpu.enqueue(nullptr), RAPT_ERROR_INVALID_ARGUMENT);
  EXPECT_NE(gpu.call().message, "");
}

}  // namespace rapt::test
