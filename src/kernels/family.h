// Family: one way to compute an attention problem. The registry is a plain table; the planner walks it in order of
// preference. A family has a folder: a host half (when it applies, its configuration, its launch) and what runs.
// Host halves see problems, machines and parameters. They launch nothing: the run time does.
#pragma once

#include <string>

#include "device/device.h"
#include "kernels/launch_spec.h"
#include "kernels/shared/config.h"
#include "kernels/shared/params.h"
#include "problem/problem.h"

namespace rapt {

struct ConfigChange;  // kernels/config_rules.h
struct CpuResources;  // cpu/resources.h

// Compile-time or dispatch choices of a kernel. CPU families read isa, block_m, block_n and splits; GPU families read
// `attention`, from which their kernel is compiled.
struct KernelConfig {
  CpuIsa isa = CpuIsa::scalar;
  int block_m = 0;     // query rows of a tile
  int block_n = 0;     // keys of a tile
  int64_t splits = 1;  // parts that the keys are split in; a function of the Problem, never of the thread count
  AttentionConfig attention;
  int64_t cached_bytes = 0;  // GPU: keys and values that should fit into L2 together
  bool operator==(const KernelConfig&) const = default;
};

// One step of a call: its configuration and the call's values.
struct StepCall {
  const KernelConfig& config;
  const Problem& problem;
  const AttentionParams& params;
};

struct Family {
  const char* name;
  // Whether this family can compute the problem on the device. If not and `why` is given, a sentence with values.
  bool (*accepts)(const Problem& problem, const Device& device, std::string* why);
  // The best configuration (only called when accepted). Allocates nothing.
  KernelConfig (*configure)(const Problem& problem, const Device& device);
  size_t (*workspace_bytes)(const Problem& problem, const KernelConfig& config);

  // CPU families: computes the step. workspace: the bytes asked for, or null, and then the context's are used.
  void (*run)(const StepCall& call, CpuResources& cpu, void* workspace) = nullptr;

  // GPU families: the kernel's text, and the launch of one call.
  KernelUnit (*unit)(const KernelConfig& config) = nullptr;
  LaunchSpec (*launch_spec)(const StepCall& call) = nullptr;
  // GPU families: throws Error naming the rule that a changed configuration breaks.
  void (*check_config)(const ConfigChange& change) = nullptr;
};

extern const Family attention_cpu, attention_scalar, attention_sm80;

struct FamilyList {
  const Family* const* begin_;
  const Family* const* end_;
  const Family* const* begin() const { return begin_; }
  const Family* const* end() const { return end_; }
};
FamilyList all_families();

}  // namespace rapt
