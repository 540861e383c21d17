// ThreadPool: the workers of the CPU backend. Runs one job at a time; threads fetch indices one by one, and the caller
// participates. The result of an index does not depend on the thread. Used by context.cpp.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace rapt::cpu {

// The number of CPUs in the affinity mask, limited by the cgroup CPU quota (rounded up) and by thread_limit(). The
// result is at least 1.
int available_threads();

// The maximum number of threads of a pool: $RAPT_THREADS, default max_threads. An invalid value gives one warning.
inline constexpr int max_threads = 65536;
int thread_limit();

// A counter that fork() increments in the child. A pool from before the fork has no workers in the child and must be
// rebuilt.
unsigned fork_generation();

class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // `threads` includes the caller
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
  // The current job. Written only while open_ is false and inside_ is 0; read by workers that entered while open_ was
  // true.
  Call call_ = nullptr;
  const void* body_ = nullptr;
  int64_t count_ = 0;
  std::atomic<int64_t> next_{0};
  std::atomic<bool> open_{false};
  std::atomic<int> inside_{0};
  std::atomic<uint32_t> wake_{0};  // incremented for every job; idle workers wait on it
  std::atomic<bool> stop_{false};
};

}  // namespace rapt::cpu
