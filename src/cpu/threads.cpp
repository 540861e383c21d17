// ThreadPool, and the number of threads: affinity, cgroup quota, $RAPT_THREADS. Handles fork().
#include "cpu/threads.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "base/log.h"
#include "base/signals.h"
#include "cpu/arithmetic.h"
#include "cpu/quota.h"

namespace rapt::cpu {
namespace {

// Iterations that a worker spins before it sleeps, so that back-to-back calls find it awake.
constexpr int spins_before_sleep = 4000;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

std::atomic<unsigned> forks{0};

}  // namespace

int available_threads() {
  cpu_set_t set;
  int cpus = static_cast<int>(std::thread::hardware_concurrency());
  if (sched_getaffinity(0, sizeof set, &set) == 0) cpus = CPU_COUNT(&set);
  const double quota = std::ceil(quota_cpus());
  if (quota < cpus) cpus = static_cast<int>(quota);
  return std::clamp(cpus, 1, thread_limit());
}

int thread_limit() {
  const char* value = std::getenv("RAPT_THREADS");
  const std::string_view text = value ? value : "";
  if (text.empty()) return max_threads;
  int limit = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), limit);
  if (error == std::errc() && end == text.data() + text.size() && limit >= 1 && limit <= max_threads) return limit;
  warn_once(concat("RAPT_THREADS = '", text, "': must be a whole number from 1 to ", max_threads, "; it is ignored"));
  return max_threads;
}

unsigned fork_generation() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  (void)registered;
  return forks.load(std::memory_order_relaxed);
}

ThreadPool::ThreadPool(int threads) {
  workers_.reserve(static_cast<size_t>(std::max(threads - 1, 0)));
  // Workers inherit this mask. While NVRTC compiles, the compiling thread blocks Ctrl-C (jit/nvrtc.cpp). If a worker
  // accepted the signal then, NVRTC's handler would run in the worker and end the process.
  const SignalBlock in_workers(signals_for_other_threads());
  try {
    for (int worker = 1; worker < threads; ++worker) workers_.emplace_back([this, worker] { work(worker); });
  } catch (const std::system_error&) {
    // No more threads available. Fewer workers give the same results, more slowly.
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  wake_.fetch_add(1);
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(int64_t count, Call call, const void* body) {
  if (count <= 0) return;
  const std::lock_guard<std::mutex> lock(one_job_);
  call_ = call;
  body_ = body;
  count_ = count;
  next_.store(0);
  if (count > 1 && !workers_.empty()) {
    open_.store(true);
    wake_.fetch_add(1);
    wake_.notify_all();
  }
  take_indices(0);
  // Does not wait for sleeping workers: they will find open_ == false.
  open_.store(false);
  while (inside_.load() != 0) pause();
}

void ThreadPool::take_indices(int worker) {
  for (int64_t index = next_.fetch_add(1); index < count_; index = next_.fetch_add(1)) call_(body_, worker, index);
}

void ThreadPool::work(int worker) {
  const DefaultArithmetic scope;  // a new thread inherits the floating-point environment of its creator
  uint32_t seen = 0;
  while (!stop_.load()) {
    for (int spin = 0; spin < spins_before_sleep && wake_.load(std::memory_order_relaxed) == seen; ++spin) pause();
    wake_.wait(seen);
    seen = wake_.load();
    inside_.fetch_add(1);
    if (open_.load()) take_indices(worker);
    inside_.fetch_sub(1);
  }
}

}  // namespace rapt::cpu
