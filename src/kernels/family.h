// Family: one way to compute an attention problem. The registry is a plain table; the planner walks it in order of
// preference. A family has a folder: a host half (when it applies, its configuration, its launch) and what runs.
// Host halves see problems, machines and parameters. They launch nothing: the run time does.
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

// A kernel of a plan.
struct Step {
  const Family* family = nullptr;
  KernelConfig config;
};

// GPU memory of a call, which all of its steps share; null where the plan needs none. Both are aligned to 64 bytes.
// The call before may use the same: a programmatic launch waits for the kernel ahead of it before it touches them.
struct Workspace {
  void* counters = nullptr;  // zero before the first step; the steps leave it so
  void* scratch = nullptr;   // holds anything
};

// One step of a call: its configuration and the call's values.
struct StepCall {
  const KernelConfig& config;
  const Problem& problem;
  const AttentionParams& params;
  Workspace workspace = {};  // GPU families
};

struct Family {
  const char* name;
  // Whether this family can compute the problem on the device. If not and `why` is given, a sentence with values.
  bool (*accepts)(const Problem& problem, const Device& device, std::string* why);
  // The best configuration (only called when accepted). Allocates nothing.
  KernelConfig (*configure)(const Problem& problem, const Device& device);
  const ConfigType& config_type;
  // Scratch bytes of a plan that starts with this step. Shorter lengths never need more. On GPUs this function,
  // accepts() and configure() receive the longest lengths of the class; launch_spec() receives the call's own.
  size_t (*workspace_bytes)(const Problem& problem, const KernelConfig& config);

  // CPU families: computes the step. workspace: the bytes asked for, or null, and then the context's are used.
  void (*run)(const StepCall& call, CpuResources& cpu, void* workspace) = nullptr;

  // GPU families: the file of the kernel's text ("sm80/attention_sm80.cuh"), the translation unit that includes it, and
  // the launch of one call.
  const char* text = nullptr;
  KernelUnit (*unit)(const KernelConfig& config) = nullptr;
  LaunchSpec (*launch_spec)(const StepCall& call) = nullptr;
  // GPU families: throws Error naming the rule that a changed configuration breaks.
  void (*check_config)(const ConfigChange& change) = nullptr;
  // GPU families with several kernels: returns the next step, for example the reduction after split keys. After the
  // last step it returns a Step without a family. Families of later steps alone are not in the registry.
  Step (*next)(const Problem& problem, const Device& device, const KernelConfig& config) = nullptr;
  // Bytes of counters of a plan that starts with this step (Workspace).
  size_t (*counter_bytes)(const Problem& problem, const KernelConfig& config) = nullptr;
};

extern const Family attention_cpu, attention_scalar, attention_sm80, attention_sm90;

struct FamilyList {
  const Family* const* begin_;
  const Family* const* end_;
  const Family* const* begin() const { return begin_; }
  const Family* const* end() const { return end_; }
};
FamilyList all_families();

}  // namespace rapt
