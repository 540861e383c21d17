// Plan: the ordered steps that compute one Problem on one Device.
// plan() is a pure function and allocates nothing on success. explain() describes the same search for people. For GPUs
// it plans for classes of lengths, so problems of one class share a plan. The plan's workspace is sufficient for all of
// them.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "device/device.h"
#include "kernels/family.h"
#include "problem/problem.h"

namespace rapt {

struct Plan {
  std::array<Step, 2> steps{};
  int step_count = 0;
  size_t workspace_bytes = 0;       // in total; sufficient for every problem of the class
  size_t workspace_zero_bytes = 0;  // the counters at the beginning; a multiple of 64
};

// The input of planning: the problem, on a GPU with the longest lengths of its classes. On a CPU the lengths stay: they
// decide how keys are split, and the split affects the result's bits.
Problem planned_problem(const Problem& problem, const Device& device);

// Throws Error{unsupported} with every family's sentence if no family takes the problem.
Plan plan(const Problem& problem, const Device& device);

// Plans with one family, which need not be in the registry but must accept the problem.
Plan plan_by(const Family& family, const Problem& problem, const Device& device);

// A sentence if the slow attention_scalar computes a problem on a GPU, with attention_sm80's reason for refusing it;
// else "".
std::string slow_note(const Problem& problem, const Device& device);

// Somebody's choice in place of the planner's: "family=attention_scalar block_m=64 stages=3". Both parts may be absent.
struct PlanOverride {
  const Family* family = nullptr;
  std::string config;  // words of the family's configuration
};
// Throws Error naming an unknown family, or one named twice.
PlanOverride override_of(std::string_view words);

// The plan with an override. Throws Error with the reason if the family does not take the problem, or with the rule
// that the configuration breaks. own_text: false if a variant replaces the library's source.
Plan plan_with(const Problem& problem, const Device& device, std::string_view words, bool own_text = true);

std::string to_string(const Step& step);
// One line per step: "attention_cpu isa=avx512 block_m=64 block_n=96 splits=1".
std::string to_string(const Plan& plan);

// The problem line, the device, and for each family: chosen, possible but not chosen, or the reason for refusing it;
// then slow_note().
std::string explain(const Problem& problem, const Device& device);

}  // namespace rapt
