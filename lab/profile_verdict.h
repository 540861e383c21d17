// Evaluates a kernel's counters: the unit that limits it, the distance to that unit's peak, and the gates.
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

// How the planned configuration multiplies FP8 inputs. none: there are no FP8 inputs.
enum class Fp8Use { none, instructions, widened };

// Facts about the kernel that the gates need in addition to its counters.
struct PlannedFacts {
  std::string kernel;  // family and configuration
  Fp8Use fp8 = Fp8Use::none;
  bool tensor_products = true;   // the family computes its products on tensor cores
  std::string occupancy_reason;  // the ledger's reason for a low occupancy; "": no reason
  double flops = 0;
};
PlannedFacts planned_facts(const Problem& problem, const Step& step, const Device& device);

// The gates' limits in percent. A gate that is switched off has no limit.
struct GateLimits {
  enum class Fp8 { by_config, some, none, off } fp8 = Fp8::by_config;
  std::optional<double> tensor = 20, occupancy = 25, memory = 70;
};
// Parses the words of --gate: "tensor=10", "fp8=none", "memory=off". Throws Error for other words.
GateLimits parse_gates(const std::vector<std::string>& words);

struct Gate {
  enum class State { passed, failed, unknown, off };
  std::string name;
  State state = State::unknown;
  std::string text;  // the measured number and the rule
};

struct UnitShare {
  std::string unit;
  double percent = 0;  // use of the unit as a percentage of its peak
};

struct Verdict {
  std::vector<UnitShare> units;  // busiest first
  std::string bound;             // a sentence: the limiting unit, and the distance to its peak
  std::vector<Gate> gates;
  bool failed() const;          // true if any gate failed
  bool nothing_judged() const;  // true if a gate is unknown, and no gate passed or failed
};
Verdict judge(const ProfiledKernel& kernel, const PlannedFacts& facts, const GateLimits& limits);

// The verdict as lines of text.
std::string to_text(const ProfiledKernel& kernel, const PlannedFacts& facts, const Verdict& verdict);
nlohmann::ordered_json to_json(const ProfiledKernel& kernel, const PlannedFacts& facts, const Verdict& verdict);

}  // namespace rapt::lab
