// The GPU part of a context: plans that are compiled, loaded and ready, found by the class of a problem. Used by
// sdpa.cpp, merge and the lab. Created at the first GPU call of a context.
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

// The request to the store: the same at run time, in packs and in the ledger. `label` describes the kernel's user.
jit::Request request_for(const KernelUnit& unit, const std::string& arch, const std::string& label,
                         const std::map<std::string, std::string>& files = {});

// A loaded kernel, with the facts that reports show.
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
  // Unique: never reused, even after the object is destroyed.
  uint64_t id() const { return id_; }

  // The properties of GPU `index` that this context plans for (its arch may be overridden).
  Device device(int index) const;

  // Uses the family and the config words of this context if it has them, otherwise its tuned rows.
  Plan plan(const Problem& problem, const Device& device) const;
  // The rows are read at the first plan. There are none if this context has its own config words, or its own device
  // sources, because the rows were not measured with them.
  const TunedRows& tuned_rows() const;
  // A plan ready to launch. Null if no problem of its class was seen yet, or if it was forgotten.
  std::shared_ptr<const LoadedPlan> find(const Problem& problem, int device_index) const;
  // Plans, compiles and loads whatever is missing. Needs a ContextScope of the device.
  std::shared_ptr<const LoadedPlan> load(const Problem& problem, const Device& device);
  // The same if nothing must be compiled or loaded, as during stream capture; else null.
  std::shared_ptr<const LoadedPlan> plan_of_loaded_kernels(const Problem& problem, const Device& device);
  // For calls without their own workspace.
  Workspaces& workspaces() { return workspaces_; }
  // A kernel that does not belong to a plan. Needs a ContextScope of the device.
  const LoadedKernel& kernel(const Device& device, const KernelUnit& unit, const std::string& label);

  // True if kernel() would find it in memory.
  bool has_kernel(const Device& device, const KernelUnit& unit);

  static constexpr size_t remembered_plans = 1024;  // the capacity: at most so many plans are kept
  size_t known_plans() const;                       // number of remembered plans

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
  struct StepKernel {  // found by config, so a new length builds no source
    const Family* family;
    KernelConfig config;
    std::string arch;
    const LoadedKernel* kernel;
  };

  Plan plan(const Problem& problem, const Device& device, const TunedRows& rows, const TunedRow** used = nullptr) const;
  std::shared_ptr<const LoadedPlan> load(const Plan& plan, const Problem& problem, const Device& device);
  std::shared_ptr<const LoadedPlan> of_loaded_kernels(const Plan& plan, const Device& device);
  const LoadedKernel* known_kernel(const Step& step, const Device& device);  // null: not loaded
  const LoadedKernel& kernel_of(const Step& step, const Device& device, const Problem& problem);
  void remember(const Problem& problem, int device_index, std::shared_ptr<const LoadedPlan> plan);

  const uint64_t id_;
  const std::string arch_, config_;
  const Family* const family_;
  const std::map<std::string, std::string> files_;
  const bool line_info_;
  const TunedFile tuned_file_;
  mutable std::once_flag tuned_once_;
  mutable TunedRows tuned_rows_;
  mutable std::atomic<bool> tuned_read_{false};
  jit::Store store_;
  mutable std::shared_mutex plans_mutex_;
  std::unordered_map<Key, Remembered, KeyHash, KeyEqual> plans_;
  mutable std::atomic<uint64_t> clock_{0};
  std::mutex kernels_mutex_;
  std::map<std::pair<std::string, std::string>, std::unique_ptr<LoadedKernel>> kernels_;  // key: source and arch
  std::vector<StepKernel> step_kernels_;
  Workspaces workspaces_;
};

}  // namespace rapt
