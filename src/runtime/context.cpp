// Context: its threads, memory and GPU resources.
#include "runtime/context.h"

#include <algorithm>
#include <memory>

#include "base/log.h"
#include "runtime/gpu.h"

namespace rapt {

Context::Context(ContextOptions options) : options_(std::move(options)) {
  log_level();  // reports a wrong RAPT_LOG even if nothing else is logged
}

Context::~Context() {
  const CpuResources* const current = cpu_.load();
  if (current != nullptr && current->generation == cpu::fork_generation()) delete current;
}

Context& Context::process_default() {
  // It is never destroyed, because calls of other threads can still run while the process exits.
  static Context* const context = new Context(ContextOptions{});
  return *context;
}

CpuResources& Context::cpu() {
  const unsigned generation = cpu::fork_generation();
  CpuResources* current = cpu_.load();
  if (current != nullptr && current->generation == generation) return *current;
  const int threads = options_.threads > 0 ? std::min(options_.threads, cpu::thread_limit()) : cpu::available_threads();
  auto fresh = std::make_unique<CpuResources>(threads, generation);
  // A forked child abandons the parent's resources, because their threads and locks belong to the parent.
  if (cpu_.compare_exchange_strong(current, fresh.get())) return *fresh.release();
  return *current;  // another thread has stored its resources first
}

GpuResources& Context::gpu() {
  std::call_once(gpu_once_, [&] { gpu_ = std::make_unique<GpuResources>(options_); });
  return *gpu_;
}

}  // namespace rapt
