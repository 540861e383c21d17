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

// Returns the request to the store. It is the same at run time, in packs and in the ledger. `label` says in messages
// who uses the kernel.
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
  // The id of this object. No other object gets the same id, even after this one is destroyed.
  uint64_t id() const { return id_; }

  // Returns the properties of GPU `index` for which this context plans. ContextOptions::arch and sm_count replace those
  // of the GPU if they are given. Throws Error if the GPU has fewer multiprocessors than sm_count.
  Device device(int index) const;

  // Uses the family and the config words of this context if it has them, otherwise its tuned rows.
  Plan plan(const Problem& problem, const Device& device) const;
  // The rows are read at the first plan. There are none if this context has its own config words, or its own device
  // sources, because the rows were not measured with them.
  const TunedRows& tuned_rows() const;
  // Returns a plan that is ready to launch. Returns null if no problem of this class was seen yet, or if the plan was
  // forgotten.
  std::shared_ptr<const LoadedPlan> find(const Problem& problem, int device_index) const;
  // Makes the plan, and compiles and loads the kernels that are missing. Needs a ContextScope of the device.
  std::shared_ptr<const LoadedPlan> load(const Problem& problem, const Device& device);
  // Like load(), but compiles and loads nothing: returns null if that is necessary. For calls during stream capture.
  std::shared_ptr<const LoadedPlan> plan_of_loaded_kernels(const Problem& problem, const Device& device);
  // For calls without their own workspace.
  Workspaces& workspaces() { return workspaces_; }
  // Returns a kernel that does not belong to a plan. Needs a ContextScope of the device.
  const LoadedKernel& kernel(const Device& device, const KernelUnit& unit, const std::string& label);

  // Returns true if kernel() would find this kernel in memory.
  bool has_kernel(const Device& device, const KernelUnit& unit);

  static constexpr size_t remembered_plans = 1024;  // the maximum number of plans that are kept
  size_t known_plans() const;                       // number of remembered plans

 private:
  struct Key {
    Problem problem;  // with the longest lengths of its class
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
  struct StepKernel {  // found by its config, so a new length needs no new source
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
  const int sm_count_;  // 0: that of the GPU
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
