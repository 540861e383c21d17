// The roofline of a problem on a GPU: the time that each unit needs for its share of the work at its measured peak, the
// unit that needs the longest time, and the shortest possible time of the problem. Called by bench. The functions
// depend only on a plan and a Roof. Source: Williams, Waterman, Patterson 2009, "Roofline: an insightful visual
// performance model".
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lab/roof.h"
#include "problem/problem.h"
#include "runtime/plan.h"

namespace rapt::lab {

struct UnitTime {
  std::string_view unit;  // "mma.sync f16", "exp2", "L2" ...
  double us = 0;
};

// Units work at the same time, but launches do not overlap with their work. So floor_us is the time of the unit that
// takes longest, plus the time of the launches.
struct Bound {
  std::vector<UnitTime> units;
  double launch_us = 0;
  double floor_us = 0;
  std::string_view unit;  // the unit that takes longest; "launch" if the launches take longer
};

struct Roofline {
  Bound kernel;  // bound for the instructions of the chosen kernel
  Bound card;    // bound for the fastest instructions that the GPU has for these dtypes
};

// from_l2: true if the inputs of all calls fit into L2, so that no call reads DRAM. Units without a measured peak are
// left out. Returns nothing if no peak was measured.
std::optional<Roofline> roofline(const Problem& problem, const Plan& plan, const Roof& roof, bool from_l2);

}  // namespace rapt::lab
