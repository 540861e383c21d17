// Context: what outlives a call. CPU workers, their scratch, and the workspace of calls that bring none; GPU plans.
// Made by c_api.cpp (one process default, others by handle); thread-safe: CPU calls take their turn.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "cpu/threads.h"
#include "jit/jit.h"

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

class GpuResources;

struct ContextOptions {
  int threads = 0;  // CPU; 0 = cpu::available_threads()
  // The lab's: what GPU kernels are compiled for ("compute_89"), device texts that replace the library's own of the
  // same name, config words over those that the planner chose (emit.h), and where images come from.
  std::string arch = {};
  std::map<std::string, std::string> files = {};
  std::string config = {};
  std::optional<jit::Store::Options> store = {};
};

class Context {
 public:
  explicit Context(ContextOptions options);
  ~Context();

  static Context& process_default();

  // Made at first use, and again in a forked child, where the parent's workers do not exist. Without a lock: a thread
  // that holds one while another forks would leave it locked in the child for ever.
  CpuResources& cpu();

  // Made at first use; needs no GPU until something is loaded.
  GpuResources& gpu();

 private:
  const ContextOptions options_;
  std::atomic<CpuResources*> cpu_{nullptr};
  std::once_flag gpu_once_;
  std::unique_ptr<GpuResources> gpu_;
};

}  // namespace rapt

// The C ABI's handle.
struct rapt_context {
  explicit rapt_context(rapt::ContextOptions options) : impl(std::move(options)) {}
  rapt::Context impl;
};
