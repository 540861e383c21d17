// ThreadPool and what the machine allows: affinity, cgroup quota, fork.
#include "cpu/threads.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>

#include "cpu/arithmetic.h"

namespace rapt::cpu {
namespace {

// Workers poll for about this long before they sleep, so that back-to-back calls find them awake.
constexpr int spins_before_sleep = 4000;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// CPUs that the cgroup quota amounts to (v2 cpu.max, else v1), or a large number without one.
double quota_cpus() {
  std::string quota;
  double period = 0;
  if (std::ifstream file("/sys/fs/cgroup/cpu.max"); file >> quota >> period && quota != "max" && period > 0)
    return std::stod(quota) / period;
  double v1_quota = 0, v1_period = 0;
  std::ifstream quota_file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), period_file("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  if (quota_file >> v1_quota && period_file >> v1_period && v1_quota > 0 && v1_period > 0) return v1_quota / v1_period;
  return 1e9;
}

std::atomic<unsigned> forks{0};

}  // namespace

int available_threads() {
  cpu_set_t set;
  int cpus = static_cast<int>(std::thread::hardware_concurrency());
  if (sched_getaffinity(0, sizeof set, &set) == 0) cpus = CPU_COUNT(&set);
  const double quota = std::ceil(quota_cpus());
  if (quota < cpus) cpus = static_cast<int>(quota);
  return std::max(cpus, 1);
}

unsigned fork_generation() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  (void)registered;
  return forks.load(std::memory_order_relaxed);
}

ThreadPool::ThreadPool(int threads) {
  workers_.reserve(static_cast<size_t>(std::max(threads - 1, 0)));
  try {
    for (int worker = 1; worker < threads; ++worker) workers_.emplace_back([this, worker] { work(worker); });
  } catch (const std::system_error&) {
    // The system refuses more threads: fewer workers give the same bits, only later.
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
  // Workers still asleep are not waited for: they will find the job closed.
  open_.store(false);
  while (inside_.load() != 0) pause();
}

void ThreadPool::take_indices(int worker) {
  for (int64_t index = next_.fetch_add(1); index < count_; index = next_.fetch_add(1)) call_(body_, worker, index);
}

void ThreadPool::work(int worker) {
  const DefaultArithmetic scope;  // a thread starts with the arithmetic of the one that makes it
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
