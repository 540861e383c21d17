// Common functions of the GPU tests: the fixture that skips tests without a GPU, many checks at once, and a call in GPU
// memory. Included only by files of this folder. Calls, fills and comparisons of bits are in tests/cpu/support.h.
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "../cpu/support.h"
#include "check/check.h"
#include "check/device_tensors.h"
#include "cuda/cuda.h"
#include "runtime/context.h"
#include "runtime/plan.h"

namespace rapt::test {

inline constexpr rapt_device first_gpu{RAPT_DEVICE_CUDA, 0};

// The fixture of every test that needs a GPU. Without a GPU the test is skipped and counted. If an earlier test has
// made the GPU's context unusable, the test fails immediately. Tests run in a ContextScope of GPU 0.
class GpuTest : public testing::Test {
 public:
  static int run_count() { return run_count_; }
  static int skipped_count() { return skipped_count_; }

 protected:
  void SetUp() override;
  void TearDown() override { scope_.reset(); }
  void skip(const std::string& why);  // for tests that need a feature which this GPU lacks

 private:
  std::optional<cuda::ContextScope> scope_;
  static int run_count_, skipped_count_;
};

// A text such as "NVIDIA H100 80GB HBM3 (sm_90a), driver for CUDA 12.8, NVRTC 13.0.88", or the reason why there is no
// GPU.
std::string about_gpu();

// Collects failures from several threads. report() prints them, the first ones in full.
class Failures {
 public:
  static constexpr size_t many = 40;  // after this number, failures are only counted
  void add(const std::string& text);
  bool too_many() const;
  void report() const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> texts_;
};

// Calls body(i) for i in [0, count), on all threads available to this process. Exceptions become failures.
void in_parallel(size_t count, Failures& failures, const std::function<void(size_t i)>& body);

// One problem line and fill, like the arguments of `rapt check`.
struct Job {
  std::string line;
  check::Fill fill = check::Fill::normal;
};
// Runs all jobs through check_problem on GPU 0, from all threads. Each thread has its own stream. A failure prints the
// command that repeats it. A refused problem is a failure.
void expect_pass(const std::vector<Job>& jobs, rapt_context* context = nullptr);

// The family that GPU 0 uses for the problem.
const Family& chosen_family(const Problem& problem);

// The line with a query tensor whose last stride is 2: only attention_scalar supports that.
std::string for_attention_scalar(const std::string& line);

// A call with tensors on a GPU, poisoned outputs, and guards around all of them. Used in a ContextScope of that GPU.
class GpuCall {
 public:
  explicit GpuCall(const Call& call, int device_index = 0);
  GpuCall(const GpuCall&) = delete;
  GpuCall& operator=(const GpuCall&) = delete;

  rapt_sdpa_args& args() { return device_.args(); }
  rapt_status enqueue(cuda::StreamHandle stream, rapt_context* context = nullptr);  // keeps status and message
  void expect_enqueue(cuda::StreamHandle stream, rapt_context* context = nullptr);
  // The work must be finished. Checks that inputs and guards are unchanged, and copies the GPU's outputs.
  const Call& result();
  // Uploads the host's current inputs and poisons the outputs again.
  void restart();
  const Call& call() const { return call_; }

 private:
  Call call_;
  check::DeviceCall device_;
};

// Runs the call on GPU 0 on its own stream. Expects success and unchanged guards and margins.
Call& run_gpu(Call& call, rapt_context* context = nullptr);
// The same without expectations, for threads. Returns false on any error or if a bit differs from `expected`.
bool repeats_on_gpu(const Call& expected, rapt_context* context);

// A context with internal options (ContextOptions), which lab/ also uses.
std::unique_ptr<rapt_context> make_context(ContextOptions options = {});

// The folder check/cases: in the current folder, or in the source tree.
std::string cases_directory();

// The number of calls of operator new in this thread (allocations.cpp).
int64_t allocations_of_this_thread();

// True if every element still holds the poison of make_outputs.
bool untouched(const HostTensor& output);

}  // namespace rapt::test
