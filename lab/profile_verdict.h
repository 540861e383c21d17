// What the counters of a kernel say: which unit bounds it, how far it is from that unit's roof, and the gates.
// Used by profile.cpp and tests; needs neither ncu nor a GPU.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "device/device.h"
#include "kernels/family.h"
#include "lab/profile_metrics.h"
#include "problem/problem.h"

namespace rapt::lab {

// What the plan's configuration says of FP8 tensor instructions.
enum class Fp8Use { none, instructions, widened };  // none: no input has codes

// What the gates need to know of the kernel besides its counters.
struct PlannedFacts {
  std::string kernel;  // family and configuration
  Fp8Use fp8 = Fp8Use::none;
  bool tensor_products = true;   // the family computes its products on tensor cores
  std::string occupancy_reason;  // the ledger's for few threads on a multiprocessor; "" = none
  double flops = 0;
};
PlannedFacts planned_facts(const Problem& problem, const Step& step, const Device& device);

// The gates' limits, in per cent. A gate that is switched off has none.
struct GateLimits {
  enum class Fp8 { by_config, some, none, off } fp8 = Fp8::by_config;
  std::optional<double> tensor = 20, occupancy = 25, memory = 70;
};
// Words of --gate: "tensor=10", "fp8=none", "memory=off". Throws Error for others.
GateLimits parse_gates(const std::vector<std::string>& words);

struct Gate {
  enum class State { passed, failed, unknown, off };
  std::string name;
  State state = State::unknown;
  std::string text;  // the number and the rule
};

struct UnitShare {
  std::string unit;
  double percent = 0;  // of its peak
};

struct Verdict {
  std::vector<UnitShare> units;  // the busiest first
  std::string bound;             // a sentence: what bounds the kernel, and how far the roof is
  std::vector<Gate> gates;
  bool failed() const;          // some gate
  bool nothing_judged() const;  // no gate had its numbers
};
Verdict judge(const ProfiledKernel& kernel, const PlannedFacts& facts, const GateLimits& limits);

// Lines for a screen.
std::string to_text(const ProfiledKernel& kernel, const PlannedFacts& facts, const Verdict& verdict);
nlohmann::ordered_json to_json(const ProfiledKernel& kernel, const PlannedFacts& facts, const Verdict& verdict);

}  // namespace rapt::lab
