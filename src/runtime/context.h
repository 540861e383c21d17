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

#include "cpu/resources.h"
#include "jit/jit.h"

namespace rapt {

class GpuResources;
struct Family;

struct ContextOptions {
  int threads = 0;  // CPU; 0 = cpu::available_threads()
  // The lab's: what GPU kernels are compiled for ("compute_89"), device texts that replace the library's own of the
  // same name, config words over those that the planner chose (emit.h), and where images come from.
  std::string arch = {};
  std::map<std::string, std::string> files = {};
  std::string config = {};
  std::optional<jit::Store::Options> store = {};
  // The tests': a family of GPU kernels that is asked before the registry.
  const Family* family = nullptr;
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
