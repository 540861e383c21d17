// Reports R98..R104, R172 and R182 (streams, devices, all compute capabilities, read-only home folders) without a GPU.
// The whole library runs with the stand-in driver of tests/fake_cuda, which counts calls and records launches.
// tests/gpu checks the results of kernels. reports.h describes each report.

#include <algorithm>
#include <functional>
#include <optional>
#include <thread>

#include "arguments/arguments.h"
#include "check/device_tensors.h"
#include "cuda/driver.h"
#include "fake_driver.h"
#include "jit/nvrtc.h"
#include "jit_support.h"
#include "reports_process.h"
#include "runtime/context.h"
#include "runtime/gpu.h"
#include "support.h"

namespace rapt::test {
namespace {

// Runs body in a process with one stand-in GPU for each of `capabilities` ("80,90"). Returns its output.
std::string on_fake_gpus(const std::string& report, const std::string& capabilities, const std::function<void()>& body,
                         const std::string& environment = "") {
  if (!report_role().empty()) return body(), "";
  const auto count = 1 + std::count(capabilities.begin(), capabilities.end(), ',');
  ReportProcess child(report, "child",
                      concat(environment, " LD_LIBRARY_PATH='", RAPT_BINARY_DIR, "/fake_cuda' FAKE_CUDA_VERSION=13000",
                             " FAKE_CUDA_DEVICES=", count, " FAKE_CUDA_SM=", capabilities));
  return child.finish();
}

// Environment words with which all kernels are compiled and none is stored.
ContextOptions without_cache() {
  ContextOptions options;
  options.store.emplace();
  return options;
}

// A call with tensors on a stand-in GPU.
struct FakeCall {
  Call call;
  std::optional<check::DeviceCall> device;

  FakeCall(const std::string& line, int index) : call(make(line)) {
    const cuda::ContextScope scope(index, nullptr);
    call.out = check::make_outputs(call.problem);
    device.emplace(index, call.problem, call.in, call.out);
  }
  rapt_status enqueue(rapt_context* context, void* stream) {
    call.status = rapt_sdpa(context, &device->args(), stream);
    call.message = rapt_last_error();
    return call.status;
  }
};

// The number of driver calls that wait, or that use the default stream.
long calls_beside_the_stream() {
  long calls = 0;
  for (const char* function : {"cuMemcpyHtoD", "cuMemcpyDtoH", "cuMemsetD8", "cuStreamSynchronize",
                               "cuEventSynchronize", "cuEventRecord", "cuStreamWaitEvent", "cuStreamCreate"})
    calls += fake().calls(function);
  return calls;
}

}  // namespace

// A call uses only the caller's stream, whether its kernel is already loaded or not, and in a capture, too.
TEST(Reports, R98) {
  on_fake_gpus("R98", "80", [] {
    rapt_context context(without_cache());
    FakeCall call("f16 b1 h1 q128 k128 d64 lse", 0);
    const cuda::ContextScope scope(0, nullptr);
    const cuda::Stream stream;
    const long before = calls_beside_the_stream();
    for (int i = 1; i <= 3; ++i) {  // the first one compiles and loads
      ASSERT_EQ(call.enqueue(&context, stream.handle()), RAPT_OK) << call.call.message;
      EXPECT_EQ(fake().launches(), i);
      EXPECT_EQ(fake().last_launch().stream, stream.handle());
    }
    EXPECT_EQ(calls_beside_the_stream(), before);
    cuda::Graph::begin(stream.handle());
    EXPECT_EQ(call.enqueue(&context, stream.handle()), RAPT_OK) << call.call.message;
    const cuda::Graph graph(stream.handle());
    EXPECT_EQ(fake().launches(), 3) << "recorded, not run";
    graph.replay(stream.handle());
    EXPECT_EQ(fake().launches(), 4);
    EXPECT_EQ(calls_beside_the_stream(), before);
  });
}

// A call runs on the GPU of its tensors. The current context is the same before and after the call.
TEST(Reports, R100) {
  on_fake_gpus("R100", "80,80", [] {
    rapt_context context(without_cache());
    void* const primary[] = {fake().primary(0), fake().primary(1)};
    const std::string line = "f16 b4 h32 q16 k16 d64 lse";
    {
      FakeCall call(line, 1);
      fake().set_current(primary[0]);
      for (void* stream : {static_cast<void*>(nullptr), fake().make_stream(primary[1])})
        for (int i = 0; i < 2; ++i) {
          ASSERT_EQ(call.enqueue(&context, stream), RAPT_OK) << call.call.message;
          EXPECT_EQ(fake().last_launch().context, primary[1]);
          EXPECT_EQ(fake().last_launch().stream, stream);
          EXPECT_EQ(fake().current(), primary[0]);
          EXPECT_EQ(fake().depth(), 1);
        }
    }
    const long before = fake().launches();
    std::vector<std::thread> threads;
    for (int index : {0, 1})
      threads.emplace_back([&, index] {
        FakeCall call(line, index);
        fake().set_current(primary[1 - index]);
        void* const stream = fake().make_stream(primary[index]);
        for (int i = 0; i < 20; ++i) {
          EXPECT_EQ(call.enqueue(&context, i % 2 == 0 ? stream : nullptr), RAPT_OK) << call.call.message;
          EXPECT_EQ(fake().current(), primary[1 - index]);
        }
      });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(fake().launches() - before, 40);
  });
}

// The stand-in refuses a launch that needs more shared memory than the opt-in on this device allows.
TEST(Reports, R102) {
  on_fake_gpus("R102", "90,90", [] {
    rapt_context context(without_cache());
    for (int index : {0, 1, 0}) {
      FakeCall call("f16 b1 h2 q512 k512 d256 lse", index);
      ASSERT_EQ(call.enqueue(&context, nullptr), RAPT_OK) << call.call.message;
      const auto smem_bytes = static_cast<int>(fake().last_launch().smem_bytes);
      EXPECT_GT(smem_bytes, 48 * 1024) << "this call needs no opt-in and shows nothing";
      EXPECT_EQ(fake().opt_in_smem(index), smem_bytes);
    }
    EXPECT_EQ(fake().launches(), 3);
  });
}

// The launch of a decoding step does not depend on lengths and pages, and the call reads neither on the host. So a
// recorded launch serves all of them.
TEST(Reports, R104) {
  on_fake_gpus("R104", "90", [] {
    rapt_context context(without_cache());
    const std::string line = "f16 b2 h8:2 q1 k8192 d128 page=16 lse seqused=";
    FakeCall shorter(line + "2,2", 0), longer(line + "8192,17", 0);
    const cuda::ContextScope scope(0, nullptr);
    const cuda::Stream stream;
    ASSERT_EQ(rapt_prepare(&context, &shorter.device->args(), stream.handle()), RAPT_OK) << rapt_last_error();
    const long before = calls_beside_the_stream();
    cuda::Graph::begin(stream.handle());
    EXPECT_EQ(shorter.enqueue(&context, stream.handle()), RAPT_OK) << shorter.call.message;
    const cuda::Graph graph(stream.handle());
    const fake_cuda::LaunchRecord recorded = fake().last_launch();
    EXPECT_EQ(longer.enqueue(&context, stream.handle()), RAPT_OK) << longer.call.message;
    const fake_cuda::LaunchRecord eager = fake().last_launch();
    EXPECT_EQ(fake().launches(), 1) << "only the second call has run";
    EXPECT_EQ(recorded.grid_x, eager.grid_x);
    EXPECT_EQ(recorded.threads, eager.threads);
    EXPECT_EQ(recorded.smem_bytes, eager.smem_bytes);
    EXPECT_EQ(calls_beside_the_stream(), before);
    EXPECT_EQ(fake().live_libraries(), 1) << "both lengths have the same kernel";
  });
}

namespace {

// Every GPU gets code for its own architecture or for an older minor version. If there is none, the error sentence has
// the GPU's compute capability and the known ones.
void expect_served_or_refused(rapt_context& context, int index) {
  FakeCall call("f16 b1 h2 q70 k90 d64 lse", index);
  const int sm = cuda::device(index).sm;
  SCOPED_TRACE(sm);
  const long before = fake().launches();
  const rapt_status status = call.enqueue(&context, nullptr);
  const std::string& message = call.call.message;
  const std::vector<int>& known = jit::find_compiler()->architectures;
  const std::string compiled_for = jit::known_architecture(*jit::find_compiler(), arch_of(sm));
  if (sm < 80) {
    EXPECT_EQ(status, RAPT_ERROR_UNSUPPORTED);
    EXPECT_TRUE(contains(message, concat("sm_", sm)) && contains(message, "sm_80 or newer")) << message;
  } else if (compiled_for.empty()) {
    EXPECT_EQ(status, RAPT_ERROR_ENVIRONMENT);
    EXPECT_TRUE(contains(message, arch_of(sm))) << message;
    for (const int each : known) EXPECT_TRUE(contains(message, std::to_string(each))) << each << ": " << message;
  } else {
    ASSERT_EQ(status, RAPT_OK) << message;
    const auto loaded = context.impl.gpu().find(problem_from(call.device->args()), index);
    ASSERT_NE(loaded, nullptr);
    EXPECT_EQ(loaded->kernels[0]->image->arch, compiled_for);
    EXPECT_TRUE(contains(loaded->kernels[0]->image->bytes.substr(0, 4), "ELF")) << "machine code";
  }
  EXPECT_EQ(fake().launches() - before, status == RAPT_OK ? 1 : 0);
}

}  // namespace

TEST(Reports, R172) {
  on_fake_gpus("R172", "70,86,89,103,120,121,130", [] {
    rapt_context context(without_cache());
    for (int index = 0; index < cuda::device_count(); ++index) expect_served_or_refused(context, index);
    EXPECT_GE(fake().launches(), 3) << "NVRTC of CUDA 12 and later knows 8.6, 8.9 and 12.0";
  });
  if (!report_role().empty()) return;
  // If there are only prebuilt kernels for another GPU, the error names the GPU, and says what to do and where to put
  // the file.
  const TemporaryFolder folder;
  jit::write_pack(folder / "old.pack", {jit::compile(small_kernel(1, "sm_89"))});
  jit::Store::Options options;
  options.packs = {folder / "old.pack"};
  options.use_compiler = false;
  jit::Store store(options);
  EXPECT_EQ(store.get(small_kernel(1, "sm_89"))->source, jit::Image::Source::pack);
  const std::string message = error_of([&] { store.get(small_kernel(1, "sm_120")); }, ErrorCode::environment);
  for (const char* word : {"sm_120", "rapt pack", "RAPT_PACKS"}) EXPECT_TRUE(contains(message, word)) << message;
}

// With a read-only home folder, calls work, but each process compiles again. One log line says which variable to set.
TEST(Reports, R182) {
  for (const char* home : {"HOME=/proc", "-u HOME"}) {
    const std::string printed = on_fake_gpus(
        "R182", "89",
        [] {
          for (const char* line : {"f16 b1 h2 q70 k90 d64 lse", "f16 b1 h2 q70 k90 d64 causal"}) {
            FakeCall call(line, 0);
            EXPECT_EQ(call.enqueue(nullptr, nullptr), RAPT_OK) << call.call.message;
          }
          EXPECT_EQ(fake().launches(), 2);
        },
        concat("-u RAPT_CACHE -u XDG_CACHE_HOME -u RAPT_PACKS -u RAPT_LOG ", home));
    if (!report_role().empty()) return;
    const size_t first = printed.find("rapt: ");
    ASSERT_NE(first, std::string::npos) << home << " passed in silence: " << printed;
    EXPECT_EQ(printed.find("rapt: ", first + 1), std::string::npos) << printed;
    EXPECT_TRUE(contains(printed, "RAPT_CACHE")) << printed;
  }
}

}  // namespace rapt::test
