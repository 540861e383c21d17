// Implements gpu_support.h.
#include "gpu_support.h"

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <thread>

#include "base/error.h"
#include "check/poison.h"
#include "cpu/threads.h"
#include "cuda/driver.h"
#include "jit/jit.h"
#include "kernels/family.h"
#include "watchdog.h"

namespace rapt::test {

int GpuTest::run_count_ = 0;
int GpuTest::skipped_count_ = 0;

namespace {

// The reason why the GPU no longer works; "" while it works.
std::string fault_of_gpu() {
  try {
    cuda::Buffer(16).fill(0);
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

void GpuTest::SetUp() {
  if (cuda::device_count() == 0) {
    ++skipped_count_;
    GTEST_SKIP() << "no GPU";
  }
  ++run_count_;
  scope_.emplace(0, nullptr);
  const std::string fault = fault_of_gpu();
  if (!fault.empty()) FAIL() << "an earlier test broke the GPU's context: " << fault;
}

void GpuTest::skip(const std::string& why) {
  --run_count_;
  ++skipped_count_;
  GTEST_SKIP() << why;
}

std::string about_gpu() {
  std::string why;
  if (cuda::find_driver(&why) == nullptr) return "no GPU: " + why;
  if (cuda::device_count() == 0) return "no GPU: the driver sees none";
  const Device& gpu = cuda::device(0);
  const int version = cuda::driver().version;
  const jit::Compiler* compiler = jit::find_compiler(&why);
  return concat(gpu.name, " (", gpu.arch, ", ", gpu.sm_count, " SMs) x ", cuda::device_count(), ", driver for CUDA ",
                version / 1000, ".", version % 1000 / 10, ", ",
                compiler == nullptr ? "no NVRTC: " + why : "NVRTC " + compiler->version);
}

void Failures::add(const std::string& text) {
  const std::lock_guard lock(mutex_);
  texts_.push_back(text);
}

bool Failures::too_many() const {
  const std::lock_guard lock(mutex_);
  return texts_.size() >= many;
}

void Failures::report() const {
  constexpr size_t in_full = 8;
  std::string text;
  for (size_t i = 0; i < std::min(in_full, texts_.size()); ++i) text += texts_[i] + "\n";
  if (texts_.size() > in_full) text += concat("and ", texts_.size() - in_full, " more\n");
  EXPECT_TRUE(texts_.empty()) << texts_.size() << (texts_.size() >= many ? " or more" : "") << " failures:\n" << text;
}

void in_parallel(size_t count, Failures& failures, const std::function<void(size_t i)>& body) {
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < count && !failures.too_many(); i = next++) {
      try {
        body(i);
      } catch (const std::exception& error) {
        failures.add(error.what());
      }
    }
  };
  std::vector<std::thread> threads;
  for (int t = 1; t < cpu::available_threads(); ++t) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
}

void expect_pass(const std::vector<Job>& jobs, rapt_context* context) {
  Failures failures;
  in_parallel(jobs.size(), failures, [&](size_t i) {
    const WorkOn problem(jobs[i].line);
    const check::Kernel kernel = check::library_kernel(context, first_gpu);
    const check::Result result = check_problem(parse_problem(jobs[i].line), jobs[i].fill, 1, kernel);
    if (!result.pass)
      failures.add(
          concat(result.refused ? "refused: " : "", result.message, "\n    ", result.command, " --device cuda:0"));
  });
  failures.report();
}

const Family& chosen_family(const Problem& problem) { return *plan(problem, cuda::device(0)).steps[0].family; }

std::string for_attention_scalar(const std::string& line) {
  Problem p = parse_problem(line);
  const int64_t d = 2 * p.head_dim;
  p.q_strides = p.varlen ? std::vector{p.heads_q * d, d, int64_t{2}}
                         : std::vector{p.heads_q * p.seqlen_q * d, p.seqlen_q * d, d, int64_t{2}};
  return to_string(p);
}

namespace {

Call with_outputs(Call call) {
  call.out = check::make_outputs(call.problem);
  return call;
}

}  // namespace

GpuCall::GpuCall(const Call& call, int device_index)
    : call_(with_outputs(call)), device_(device_index, call_.problem, call_.in, call_.out) {}

rapt_status GpuCall::enqueue(cuda::StreamHandle stream, rapt_context* context) {
  call_.status = rapt_sdpa(context, &device_.args(), stream);
  call_.message = rapt_last_error();
  return call_.status;
}

void GpuCall::expect_enqueue(cuda::StreamHandle stream, rapt_context* context) {
  EXPECT_EQ(enqueue(stream, context), RAPT_OK) << call_.message << " (" << to_string(call_.problem) << ")";
}

const Call& GpuCall::result() {
  device_.require_untouched();
  device_.download();
  return call_;
}

void GpuCall::restart() {
  const check::Outputs fresh = check::make_outputs(call_.problem);
  call_.out.out.storage = fresh.out.storage;
  if (fresh.lse.present()) call_.out.lse.storage = fresh.lse.storage;
  device_.upload();
}

Call& run_gpu(Call& call, rapt_context* context) {
  const WorkOn problem(to_string(call.problem));
  const cuda::ContextScope scope(0, nullptr);
  const cuda::Stream stream;
  GpuCall gpu(call);
  gpu.expect_enqueue(stream.handle(), context);
  stream.synchronize();
  call = gpu.result();
  EXPECT_EQ(check::broken_canaries(call.out.out), 0) << to_string(call.problem);
  if (call.out.lse.present()) {
    EXPECT_EQ(check::broken_canaries(call.out.lse), 0) << to_string(call.problem);
  }
  return call;
}

bool repeats_on_gpu(const Call& expected, rapt_context* context) {
  const WorkOn problem(to_string(expected.problem));
  const cuda::ContextScope scope(0, nullptr);
  const cuda::Stream stream;
  GpuCall gpu(expected);
  if (gpu.enqueue(stream.handle(), context) != RAPT_OK) return false;
  stream.synchronize();
  const Call& again = gpu.result();
  return bits(again.out.out) == bits(expected.out.out) && bits(again.out.lse) == bits(expected.out.lse);
}

std::unique_ptr<rapt_context> make_context(ContextOptions options) {
  return std::make_unique<rapt_context>(std::move(options));
}

std::string cases_directory() {
  const std::string here = "check/cases";
  return std::filesystem::exists(here + "/smoke.txt") ? here : RAPT_SOURCE_DIR "/check/cases";
}

bool untouched(const HostTensor& output) {
  bool all = true;
  each_index(output.shape, [&](const std::vector<int64_t>& at) {
    int64_t index = 0;
    for (size_t d = 0; d < at.size(); ++d) index += at[d] * output.strides[d];
    all = all && check::is_poison(output, index);
  });
  return all;
}

}  // namespace rapt::test
