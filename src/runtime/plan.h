// Plan: the ordered steps that compute one Problem on one Device. plan() is a pure function and allocates nothing on
// success. explain() describes the same search for people. For GPUs a plan is made for a length class, and all problems
// of the class share it. The plan's workspace is sufficient for all of them.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "device/device.h"
#include "kernels/family.h"
#include "problem/problem.h"
#include "runtime/tuned_rows.h"

namespace rapt {

struct Plan {
  std::array<Step, 2> steps{};
  int step_count = 0;
  size_t workspace_bytes = 0;       // in total; sufficient for every problem of the class
  size_t workspace_zero_bytes = 0;  // the counters at the beginning; a multiple of 64
};

// Returns the problem for which the plan is made. On a GPU it has the longest lengths of the length class. On a CPU the
// lengths do not change: they determine how keys are split, and the split affects the result's bits.
Problem planned_problem(const Problem& problem, const Device& device);

// Throws Error{unsupported} with every family's sentence if no family accepts the problem.
Plan plan(const Problem& problem, const Device& device);

// Plans with the given family. The family need not be in the registry, but it must accept the problem.
Plan plan_by(const Family& family, const Problem& problem, const Device& device);

// Returns a warning if the slow attention_scalar computes a problem on a GPU: how much time that costs, and
// attention_sm80's reason for rejecting the problem. Otherwise returns "". explain() and the log use this sentence.
std::string slow_note(const Problem& problem, const Device& device);

// A choice that replaces the planner's choice: "family=attention_scalar block_m=64 stages=3". Both parts may be absent.
struct PlanOverride {
  const Family* family = nullptr;
  std::string config;  // fields of the family's configuration: "block_m=64 warps_m=4"
};
// Parses "family=NAME field=value ...", in any order. Throws Error if a family is unknown or is given twice.
PlanOverride override_of(std::string_view words);

// Returns the plan with an override. Throws Error if the family rejects the problem or the configuration breaks a rule.
// words: see override_of(). own_text: the kernel source is the library's; false if a variant replaces it.
Plan plan_with(const Problem& problem, const Device& device, std::string_view words, bool own_text = true);

// Returns the plan of a call on a GPU: the plan of its class's tuned row if there is one, otherwise the planner's own.
// A row whose configuration breaks a rule is ignored with a warning. The workspace also suffices for the planner's own
// plan, so the runtime may use that plan instead. used: receives the row, or null.
Plan plan_by_row(const Problem& problem, const Device& device, const TunedRows& rows, const TunedRow** used = nullptr);

std::string to_string(const Step& step);
// One line per step: "attention_cpu isa=avx512 block_m=64 block_n=96 splits=1".
std::string to_string(const Plan& plan);

// Returns the problem line, the device, and a line for each family: chosen, possible but not chosen, or the reason for
// rejecting the problem. If the problem has a tuned row, a line names it, with its times. The last part is slow_note().
std::string explain(const Problem& problem, const Device& device, const TunedRows& rows = {});

}  // namespace rapt
