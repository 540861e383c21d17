// The ladder: one attention kernel for each step of the way from a scalar loop to the shipped kernel, on the mission
// shape "f16 b1 h8 q512 d64". A rung is an experiment: its device text takes the place of a shipped family's, and it
// goes through the same emit, store, check and timing. Called by bench (--ladder) and tests. Told in docs/ladder.md.
#pragma once

#include <map>
#include <span>
#include <string>

#include "device/device.h"
#include "jit/jit.h"
#include "kernels/family.h"
#include "lab/commands.h"
#include "problem/problem.h"

namespace rapt::lab {

struct Rung {
  const char* name;
  const char* then;    // the name, or names, that the project once gave it; "" = none
  const char* target;  // on an L4, then; "" = none
  const Family* family;
  const char* text;    // among device_texts(); "" = the family's own
  const char* config;  // words over the planner's choice
};
std::span<const Rung> ladder_rungs();

// Throws Error{unsupported} for a problem that some rung would compute wrongly: they know no masks, no ragged ends, no
// strides of a caller's.
void require_ladder_problem(const Problem& problem);

// A rung ready to be compiled for a device.
struct RungKernel {
  KernelConfig config;
  KernelUnit unit;
  std::map<std::string, std::string> files;  // over the library's device texts
  jit::Request request;
};
RungKernel rung_kernel(const Rung& rung, const Problem& problem, const Device& device);

// rapt bench LINE --ladder: checks every rung, times those that are right side by side, prints a table and writes rows.
int ladder(const BenchOptions& options);

}  // namespace rapt::lab
