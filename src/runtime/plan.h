// Plan: the ordered steps that carry out one Problem on one Device.
// plan() is a pure function, allocation-free on success; explain() is the same walk told to people.
// On GPUs it sees classes of lengths, so that problems of one class share a plan; its workspace suffices for all of
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
  size_t workspace_bytes = 0;       // in all; of every problem of the class
  size_t workspace_zero_bytes = 0;  // the counters, which come first; a multiple of 64
};

// What a plan is made from: the facts of a problem, with the longest lengths of their classes on a GPU. On a CPU the
// lengths are kept: they decide how keys are split, and the split decides the result's bits.
Problem planned_problem(const Problem& problem, const Device& device);

// Throws Error{unsupported} with every family's sentence when none takes the problem.
Plan plan(const Problem& problem, const Device& device);

// The same by one family, which need not be in the registry and accepts the problem.
Plan plan_by(const Family& family, const Problem& problem, const Device& device);

// A sentence where attention_scalar, which is slow, computes a problem on a GPU, with what attention_sm80 refused; else
// "".
std::string slow_note(const Problem& problem, const Device& device);

// The plan with `words` of --config ("block_m=64 stages=3") over the configuration of its kernels. Throws Error naming
// the rule of the family that they break. own_text: false where a variant's device text replaces the library's.
Plan plan_with(const Problem& problem, const Device& device, std::string_view words, bool own_text = true);

std::string to_string(const Step& step);
// One line a step: "attention_cpu isa=avx512 block_m=64 block_n=96 splits=1".
std::string to_string(const Plan& plan);

// The problem line, the device, and every family: chosen, able but slower, or refused with a sentence; slow_note().
std::string explain(const Problem& problem, const Device& device);

}  // namespace rapt
