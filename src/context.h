// Context: what outlives a call. CPU workers, their scratch, and the workspace of calls that bring none.
// Made by c_api.cpp (one process default, others by handle); thread-safe: CPU calls take their turn.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>

#include "cpu/threads.h"

namespace rapt {

// Bytes at 64-byte alignment that only grow. Contents are not kept when it grows.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  ~AlignedBuffer();
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;
  std::byte* reserve(size_t bytes);  // throws std::bad_alloc

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

// The CPU side of a context, held for the length of one call.
struct CpuResources {
  CpuResources(int threads, unsigned fork_generation) : generation(fork_generation), pool(threads) {}
  const unsigned generation;  // of the process that the pool's workers belong to
  std::mutex turn;
  cpu::ThreadPool pool;
  AlignedBuffer scratch, workspace;
};

class Context {
 public:
  explicit Context(int threads) : threads_(threads) {}  // 0 = cpu::available_threads()
  ~Context();

  static Context& process_default();

  // Made at first use, and again in a forked child, where the parent's workers do not exist. Without a lock: a thread
  // that holds one while another forks would leave it locked in the child for ever.
  CpuResources& cpu();

 private:
  const int threads_;
  std::atomic<CpuResources*> cpu_{nullptr};
};

}  // namespace rapt
