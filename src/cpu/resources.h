// CpuResources: the worker threads, scratch memory and default workspace of a context.
#pragma once

#include <cstddef>
#include <mutex>

#include "cpu/threads.h"

namespace rapt {

// A buffer with 64-byte alignment that only grows. Growing discards the contents.
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

// A call locks call_mutex while it uses these resources.
struct CpuResources {
  CpuResources(int threads, unsigned fork_generation) : generation(fork_generation), pool(threads) {}
  const unsigned generation;  // fork_generation() when the pool was made
  std::mutex call_mutex;
  cpu::ThreadPool pool;
  AlignedBuffer scratch, workspace;
};

}  // namespace rapt
