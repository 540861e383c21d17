// What CPU calls use: worker threads, their scratch memory, the workspace of calls that bring none.
#pragma once

#include <cstddef>
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

}  // namespace rapt
