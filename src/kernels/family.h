// Family: one implementation of attention. The planner takes the first family of the registry that accepts the problem
// and prefers it. Each family has a folder with host code and the kernel. The host code decides which problems the
// family accepts, chooses the configuration and describes the launch. It does not launch; src/runtime does. The build
// puts every family into the registry. Each file kernels/*/attention_*.cpp defines a family with the name of the file:
// `extern const Family attention_sm80{...}`.
#pragma once

#include <string>

#include "device/device.h"
#include "kernels/config_table.h"
#include "kernels/launch_spec.h"
#include "kernels/shared/params.h"
#include "problem/problem.h"

namespace rapt {

struct ConfigChange;  // kernels/config_rules.h
struct Family;
struct CpuResources;  // cpu/resources.h

// One kernel launch of a plan.
struct Step {
  const Family* family = nullptr;
  KernelConfig config;
};

// GPU memory that all steps of a call share; null if the plan needs none. Both pointers are aligned to 64 bytes. The
// previous call on the stream can use the same memory. So a kernel with programmatic dependent launch must execute
// griddepcontrol.wait before it accesses this memory.
struct Workspace {
  void* counters = nullptr;  // zero before the first step; the steps must leave it zero
  void* scratch = nullptr;   // uninitialised
};

// The arguments of one step (one kernel launch) of a call.
struct StepCall {
  const KernelConfig& config;
  const Problem& problem;
  const AttentionParams& params;
  Workspace workspace = {};  // GPU families only
};

struct Family {
  const char* name;
  // Returns whether this family can compute the problem on the device. If not, *why (may be null) receives the reason.
  bool (*accepts)(const Problem& problem, const Device& device, std::string* why);
  // Returns the best configuration. It is called only if accepts() returned true. It allocates nothing.
  KernelConfig (*configure)(const Problem& problem, const Device& device);
  const ConfigType& config_type;
  // Returns the scratch bytes of a plan whose first step is of this family. It must be non-decreasing in the lengths.
  // On GPUs this function, accepts() and configure() receive the longest lengths of the length class; launch_spec()
  // receives the call's lengths.
  size_t (*workspace_bytes)(const Problem& problem, const KernelConfig& config);

  // CPU families: computes the step. `workspace` has workspace_bytes() bytes; if it is null, the context's buffer is
  // used.
  void (*run)(const StepCall& call, CpuResources& cpu, void* workspace) = nullptr;

  // GPU families: the path of the kernel's source file ("sm80/attention_sm80.cuh"), the translation unit that includes
  // it, and the launch of one call.
  const char* text = nullptr;
  KernelUnit (*unit)(const KernelConfig& config) = nullptr;
  LaunchSpec (*launch_spec)(const StepCall& call) = nullptr;
  // GPU families: throws Error if a configuration changed by --config is invalid.
  void (*check_config)(const ConfigChange& change) = nullptr;
  // GPU families with several kernels: the next step, for example a kernel that merges partial states. No family needs
  // it yet. After the last step it returns a Step without a family. A family that only provides later steps is not in
  // the registry.
  Step (*next)(const Problem& problem, const Device& device, const KernelConfig& config) = nullptr;
  // Returns the bytes of counters (see Workspace) of a plan whose first step is of this family.
  size_t (*counter_bytes)(const Problem& problem, const KernelConfig& config) = nullptr;
  // Returns whether the planner should choose this family for a problem that it accepts. False if a later family of the
  // registry is faster; *why (may be null) receives the reason. A null pointer means: always. It allocates nothing.
  bool (*prefers)(const Problem& problem, const Device& device, std::string* why) = nullptr;
  // The planner asks families of higher priority first. By convention the priority of a CUDA family is the compute
  // capability for which it was written (90 for sm_90). attention_decode has 95: it is asked first. attention_scalar
  // has 0: it comes last, because it accepts nearly every problem.
  int priority = 0;
};

// Code outside their own folders uses these families by name.
extern const Family attention_cpu, attention_decode, attention_scalar, attention_sm80, attention_sm90;

struct FamilyList {
  const Family* const* begin_;
  const Family* const* end_;
  const Family* const* begin() const { return begin_; }
  const Family* const* end() const { return end_; }
};
FamilyList all_families();

}  // namespace rapt
