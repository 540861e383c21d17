// What the GPU tests share: the fixture that skips without a GPU, many checks at once, one call kept in GPU memory.
// Included by the files of this folder only. Calls, fills and bit comparisons are those of the CPU tests' support.h.
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

// Every test that needs a GPU. Where there is none it is skipped, which is counted; where an earlier test broke the
// GPU's context it fails at once, since nothing works any more. Runs in a ContextScope of GPU 0.
class GpuTest : public testing::Test {
 public:
  static int run_count() { return run_count_; }
  static int skipped_count() { return skipped_count_; }

 protected:
  void SetUp() override;
  void TearDown() override { scope_.reset(); }
  void skip(const std::string& why);  // a GPU is there, but not what the test needs

 private:
  std::optional<cuda::ContextScope> scope_;
  static int run_count_, skipped_count_;
};

// "NVIDIA H100 80GB HBM3 (sm_90a), driver for CUDA 12.8, NVRTC 13.0.88", or why there is no GPU.
std::string about_gpu();

// Collects from several threads; reported by report(), the first ones in full.
class Failures {
 public:
  static constexpr size_t many = 40;  // after so many the rest says nothing new
  void add(const std::string& text);
  bool too_many() const;
  void report() const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> texts_;
};

// body(i) for i in [0, count), on all threads that this process may use. What it throws becomes a failure.
void in_parallel(size_t count, Failures& failures, const std::function<void(size_t i)>& body);

// One problem line and fill, as `rapt check` takes them.
struct Job {
  std::string line;
  check::Fill fill = check::Fill::normal;
};
// All jobs through check_problem on GPU 0, from all threads, each with a stream of its own. A failure prints the line
// that reruns it; a refusal is a failure.
void expect_pass(const std::vector<Job>& jobs, rapt_context* context = nullptr);

// The family that GPU 0 gives the problem to.
const Family& chosen_family(const Problem& problem);

// The line, with a query tensor whose last stride is 2: only attention_scalar takes it.
std::string for_attention_scalar(const std::string& line);

// A call whose tensors lie on a GPU, outputs poisoned, guards around all of them. Used in a ContextScope of that GPU.
class GpuCall {
 public:
  explicit GpuCall(const Call& call, int device_index = 0);
  GpuCall(const GpuCall&) = delete;
  GpuCall& operator=(const GpuCall&) = delete;

  rapt_sdpa_args& args() { return device_.args(); }
  rapt_status enqueue(cuda::StreamHandle stream, rapt_context* context = nullptr);  // keeps status and message
  void expect_enqueue(cuda::StreamHandle stream, rapt_context* context = nullptr);
  // The work must be done. Requires inputs and guards untouched; the outputs are then those of the GPU.
  const Call& result();
  // Uploads the host's present inputs and poisons the outputs again.
  void restart();
  const Call& call() const { return call_; }

 private:
  Call call_;
  check::DeviceCall device_;
};

// Runs the call on GPU 0 with a stream of its own and expects success, whole guards and whole canaries.
Call& run_gpu(Call& call, rapt_context* context = nullptr);
// The same without expectations, for threads: false where anything went wrong or a bit differs from `expected`.
bool repeats_on_gpu(const Call& expected, rapt_context* context);

// A context with options of the inside, as the lab makes them.
std::unique_ptr<rapt_context> make_context(ContextOptions options = {});

// Where check/cases lies: here, or in the source tree.
std::string cases_directory();

// How often operator new has run in this thread (allocations.cpp).
int64_t allocations_of_this_thread();

// Whether every element still holds the poison of make_outputs.
bool untouched(const HostTensor& output);

}  // namespace rapt::test
