// Family: one implementation of attention. The planner tries the families of the registry in order of preference. Each
// family has a folder with a host half (which problems it accepts, its configuration, its launch) and the kernel. The
// host half launches nothing itself; src/runtime does.
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
// previous call on the stream may use the same memory: a kernel with programmatic dependent launch must execute
// griddepcontrol.wait before it accesses it.
struct Workspace {
  void* counters = nullptr;  // zero before the first step; the steps must leave it zero
  void* scratch = nullptr;   // uninitialised
};

// One step of a call: its configuration and the call's parameters.
struct StepCall {
  const KernelConfig& config;
  const Problem& problem;
  const AttentionParams& params;
  Workspace workspace = {};  // GPU families only
};

struct Family {
  const char* name;
  // Whether this family can compute the problem on the device. If not, *why (may be null) receives the reason.
  bool (*accepts)(const Problem& problem, const Device& device, std::string* why);
  // The best configuration. Called only if accepts() returned true. Allocates nothing.
  KernelConfig (*configure)(const Problem& problem, const Device& device);
  const ConfigType& config_type;
  // Scratch bytes of a plan that starts with this step. Must not decrease with the lengths. On GPUs this function,
  // accepts() and configure() receive the longest lengths of the length class; launch_spec() receives the call's
  // lengths.
  size_t (*workspace_bytes)(const Problem& problem, const KernelConfig& config);

  // CPU families: computes the step. workspace: workspace_bytes() bytes; if null, the context's buffer is used.
  void (*run)(const StepCall& call, CpuResources& cpu, void* workspace) = nullptr;

  // GPU families: the kernel's source file ("sm80/attention_sm80.cuh"), the translation unit that includes it, and the
  // launch of one call.
  const char* text = nullptr;
  KernelUnit (*unit)(const KernelConfig& config) = nullptr;
  LaunchSpec (*launch_spec)(const StepCall& call) = nullptr;
  // GPU families: throws Error if a configuration changed by --config is invalid.
  void (*check_config)(const ConfigChange& change) = nullptr;
  // GPU families with several kernels: the next step, for example the combine kernel after split-KV. After the last
  // step it returns a Step without a family. A family that is only a later step is not in the registry.
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
