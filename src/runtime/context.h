// Context: everything that lives longer than a call: CPU threads and their scratch memory, GPU plans, and the
// workspaces of calls that bring none. Created by c_api.cpp: one default context per process, others by handle.
// Thread-safe: CPU calls run one at a time.
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
  int threads = 0;  // CPU threads. 0: cpu::available_threads()
  // For the lab: the target of GPU kernels ("compute_89"), the number of multiprocessors that the planner assumes (0:
  // all of the GPU), device sources that replace built-in ones of the same name, config words that override the
  // planner's choice, the options of the store, and source lines in the kernels.
  std::string arch = {};
  int sm_count = 0;
  std::map<std::string, std::string> files = {};
  std::string config = {};
  std::optional<jit::Store::Options> store = {};
  bool line_info = false;  // compiles source lines into the kernels, for profilers
  // The file of tuned rows; "": none. Default: tuned_file(), or none if `store` is given.
  std::optional<std::string> tuned = {};
  // For tests: a family of GPU kernels that is asked before the registry.
  const Family* family = nullptr;
};

class Context {
 public:
  explicit Context(ContextOptions options);
  ~Context();

  static Context& process_default();

  // Created at first use, and again in a forked child, where the parent's threads do not exist. It uses no lock: a lock
  // that another thread holds during a fork would stay locked in the child forever.
  CpuResources& cpu();

  // Created at first use. Needs no GPU until something is loaded.
  GpuResources& gpu();

 private:
  const ContextOptions options_;
  std::atomic<CpuResources*> cpu_{nullptr};
  std::once_flag gpu_once_;
  std::unique_ptr<GpuResources> gpu_;
};

}  // namespace rapt

// The type behind the handle of the C ABI.
struct rapt_context {
  explicit rapt_context(rapt::ContextOptions options) : impl(std::move(options)) {}
  rapt::Context impl;
};
