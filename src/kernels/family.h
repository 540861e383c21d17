// Family: one way to compute a problem. The registry is a plain table; the planner walks it in order of preference.
// A family is a pair of files: name.cpp (when it applies, tiles, launch) beside what runs (src/cpu/ or name.cuh).
#pragma once

#include <string>

#include "runtime/plan.h"

namespace rapt {

struct Binding;  // sdpa.h: tensors of one call
class Context;
struct ConfigChange;  // kernels/config_rules.h
struct LoadedKernel;  // gpu.h

// What a family launches with. GPU families use kernel and stream; the CPU's uses context.
struct LaunchScope {
  const KernelConfig& config;
  const Binding& binding;
  Context& context;
  void* workspace;  // the bytes asked for, or null where the family asked for none or the CPU call brings none
  const LoadedKernel* kernel = nullptr;
  void* stream = nullptr;
};

// The kernel of a GPU step: what is compiled, and what it needs when it runs.
struct KernelUnit {
  std::string text;  // the translation unit
  int threads = 0;
  size_t smem_bytes = 0;  // dynamic
};

struct Family {
  const char* name;
  // Whether this family can compute the problem on the device. If not and `why` is given, a sentence with values.
  bool (*accepts)(const Problem& problem, const Device& device, std::string* why);
  // The best configuration (only called when accepted). Allocates nothing.
  KernelConfig (*configure)(const Problem& problem, const Device& device);
  size_t (*workspace_bytes)(const Problem& problem, const KernelConfig& config);
  // Runs (CPU) or enqueues (GPU) the step.
  void (*launch)(const LaunchScope& scope);
  // GPU families: the kernel's text. Null for CPU families.
  KernelUnit (*unit)(const KernelConfig& config) = nullptr;
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
