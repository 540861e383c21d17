// The GPU side of a context: plans that are compiled, loaded and ready, found again by a problem of the same class.
// Used by sdpa.cpp, merge and the lab; made at the first GPU call of a context.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "cuda/cuda.h"
#include "jit/jit.h"
#include "kernels/family.h"
#include "runtime/plan.h"
#include "runtime/workspaces.h"

namespace rapt {

struct ContextOptions;

// What the store is asked for: the same at run time, in packs and in the ledger. `label` names the user of the kernel.
jit::Request request_for(const KernelUnit& unit, const std::string& arch, const std::string& label,
                         const std::map<std::string, std::string>& files = {});

// A kernel on its way to a launch, with what is worth telling about it.
struct LoadedKernel {
  std::unique_ptr<cuda::Kernel> kernel;
  std::shared_ptr<const jit::Image> image;
  KernelUnit unit;
};

struct LoadedPlan {
  Plan plan;
  std::array<const LoadedKernel*, 2> kernels{};
};

class GpuResources {
 public:
  explicit GpuResources(const ContextOptions& options);
  ~GpuResources();

  jit::Store& store() { return store_; }
  // Never that of another one, not even of one that is gone.
  uint64_t id() const { return id_; }

  // The facts of GPU `index` that this context plans for (its arch may be overridden).
  Device device(int index) const;

  // By the family and the config words of this context, where it has some.
  Plan plan(const Problem& problem, const Device& device) const;
  // Ready to launch, or null when no problem of its class has been met (or it was forgotten).
  std::shared_ptr<const LoadedPlan> find(const Problem& problem, int device_index) const;
  // Plans, compiles and loads what is missing. In a ContextScope of the device.
  std::shared_ptr<const LoadedPlan> load(const Problem& problem, const Device& device);
  // The same where nothing has to be compiled or loaded, as under stream capture; else null.
  std::shared_ptr<const LoadedPlan> plan_of_loaded_kernels(const Problem& problem, const Device& device);
  // Of calls that bring none.
  Workspaces& workspaces() { return workspaces_; }
  // A kernel that belongs to no plan. In a ContextScope of the device.
  const LoadedKernel& kernel(const Device& device, const KernelUnit& unit, const std::string& label);

  // Whether kernel() would find it in memory.
  bool has_kernel(const Device& device, const KernelUnit& unit);

  static constexpr size_t remembered_plans = 1024;
  size_t known_plans() const;  // that are remembered

 private:
  struct Key {
    Problem problem;  // the longest of its class
    int device_index;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const { return plan_hash(key.problem) + static_cast<size_t>(key.device_index); }
  };
  struct KeyEqual {
    bool operator()(const Key& a, const Key& b) const {
      return a.device_index == b.device_index && same_plan(a.problem, b.problem);
    }
  };
  struct Remembered {
    std::shared_ptr<const LoadedPlan> plan;
    mutable std::atomic<uint64_t> last_use{0};
  };
  struct StepKernel {  // found by config, so that a new length formats no text
    const Family* family;
    KernelConfig config;
    std::string arch;
    const LoadedKernel* kernel;
  };

  const LoadedKernel* known_kernel(const Step& step, const Device& device);  // null: not loaded
  const LoadedKernel& kernel_of(const Step& step, const Device& device, const Problem& problem);
  void remember(const Problem& problem, int device_index, std::shared_ptr<const LoadedPlan> plan);

  const uint64_t id_;
  const std::string arch_, config_;
  const Family* const family_;
  const std::map<std::string, std::string> files_;
  jit::Store store_;
  mutable std::shared_mutex plans_mutex_;
  std::unordered_map<Key, Remembered, KeyHash, KeyEqual> plans_;
  mutable std::atomic<uint64_t> clock_{0};
  std::mutex kernels_mutex_;
  std::map<std::pair<std::string, std::string>, std::unique_ptr<LoadedKernel>> kernels_;  // by text and arch
  std::vector<StepKernel> step_kernels_;
  Workspaces workspaces_;
};

}  // namespace rapt
