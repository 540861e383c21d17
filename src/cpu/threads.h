// ThreadPool: the CPU backend's workers. One job at a time, indices handed out one by one; the caller takes part.
// Used by context.cpp. Who computes an index never changes its result.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace rapt::cpu {

// CPUs that this process may use: affinity mask, capped by the cgroup CPU quota (rounded up) and by thread_limit().
// At least 1.
int available_threads();

// The most threads that any pool may have: $RAPT_THREADS, or most_threads without it. A bad value is told once.
inline constexpr int most_threads = 65536;
int thread_limit();

// Changes in a forked child, whose pools have no workers: a pool made under another value must be rebuilt.
unsigned fork_generation();

class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // the caller counts as one of them
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(worker, index) once for every index in [0, count), worker in [0, size()). body must not throw.
  // Calls from several threads run one after another.
  template <class Body>
  void parallel_for(int64_t count, const Body& body) {
    run(
        count, [](const void* b, int worker, int64_t index) { (*static_cast<const Body*>(b))(worker, index); }, &body);
  }

 private:
  using Call = void (*)(const void* body, int worker, int64_t index);
  void run(int64_t count, Call call, const void* body);
  void work(int worker);
  void take_indices(int worker);

  std::vector<std::thread> workers_;
  std::mutex one_job_;
  // The job: written while closed and no worker is inside, read by workers that entered while open.
  Call call_ = nullptr;
  const void* body_ = nullptr;
  int64_t count_ = 0;
  std::atomic<int64_t> next_{0};
  std::atomic<bool> open_{false};
  std::atomic<int> inside_{0};
  std::atomic<uint32_t> wake_{0};  // bumped for every job; workers sleep on it
  std::atomic<bool> stop_{false};
};

}  // namespace rapt::cpu
