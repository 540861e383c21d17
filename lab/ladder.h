// The ladder: one attention kernel for each step ("rung") from a scalar loop to the shipped kernel, for "f16 b1 h8
// q512 d64". A rung's source replaces the source of a shipped family. It is generated, cached, checked and timed like a
// shipped kernel. Called by bench (--ladder) and tests. Described in docs/ladder.md.
#pragma once

#include <map>
#include <span>
#include <string>

#include "cuda/cuda.h"
#include "device/device.h"
#include "jit/jit.h"
#include "kernels/family.h"
#include "lab/commands.h"
#include "problem/problem.h"

namespace rapt::lab {

// How a rung's launch differs from its family's.
enum class RungLaunch {
  usual,
  persistent,  // at most as many blocks as the GPU holds at once
  l2_window,   // K and V are marked to persist in the L2 cache
};

struct Rung {
  const char* name;
  const char* old_name;  // its name or names in the project's history; "": none
  const char* target;    // its target on an L4 at that time; "": none
  const Family* family;
  const char* source;  // file name in device_sources(); "": the family's own source
  const char* config;  // overrides of the planner's choice
  RungLaunch launch = RungLaunch::usual;
};
std::span<const Rung> ladder_rungs();

// Throws Error{unsupported} for a problem that some rung would compute wrongly. The rungs do not support masks, partial
// tiles or strides that the caller chooses.
void require_ladder_problem(const Problem& problem);

// A rung that is ready to be compiled for a device.
struct RungKernel {
  KernelConfig config;
  KernelUnit unit;
  std::map<std::string, std::string> files;  // replace the library's device sources of the same name
  jit::Request request;
};
RungKernel rung_kernel(const Rung& rung, const Problem& problem, const Device& device);

// A memory range that contains K, V and everything between them, because a launch has only one window.
cuda::L2Window kv_window(const AttentionParams& params, const Problem& problem);

// rapt bench LINE --ladder: checks every rung, times the correct ones side by side, prints a table and writes rows.
int ladder(const BenchOptions& options);

}  // namespace rapt::lab
