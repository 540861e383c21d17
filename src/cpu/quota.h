// The CPU quota of this process from its Linux control groups (cgroups v1 and v2). Used by threads.cpp.
#pragma once

#include <string>

namespace rapt::cpu {

inline constexpr double no_quota = 1e9;

// The smallest quota, in CPUs, of the process's control group and all groups above it; no_quota if there is none. root:
// a prefix for all paths, for tests.
double quota_cpus(const std::string& root = "");

}  // namespace rapt::cpu
