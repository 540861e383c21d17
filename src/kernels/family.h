// Family: one way to compute a problem. The registry is a plain table; the planner walks it in order of preference.
// A family is a pair of files: name.cpp (when it applies, tiles, cost, launch) beside what runs (src/cpu/ or name.cuh).
#pragma once

#include <string>

#include "plan.h"

namespace rapt {

struct Binding;  // sdpa.h: tensors of one call
class Context;

struct Family {
  const char* name;
  // Whether this family can compute the problem on the device. If not and `why` is given, a sentence with values.
  bool (*accepts)(const Problem& problem, const Device& device, std::string* why);
  // The best configuration (only called when accepted): config, workspace and, through config.splits, extra steps.
  KernelConfig (*configure)(const Problem& problem, const Device& device);
  size_t (*workspace_bytes)(const Problem& problem, const KernelConfig& config);
  // Runs or enqueues the step; workspace has the bytes asked for.
  void (*launch)(const KernelConfig& config, const Binding& binding, Context& context, void* workspace);
};

extern const Family attention_cpu;

struct FamilyList {
  const Family* const* begin_;
  const Family* const* end_;
  const Family* const* begin() const { return begin_; }
  const Family* const* end() const { return end_; }
};
FamilyList all_families();

}  // namespace rapt
