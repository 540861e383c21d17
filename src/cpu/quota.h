// How much CPU time the control groups of this process allow, as Linux tells it in /proc and in the cgroup file
// systems. Used by threads.cpp.
#pragma once

#include <string>

namespace rapt::cpu {

inline constexpr double no_quota = 1e9;

// CPUs that the tightest quota amounts to, among the process's group and every group above it, v1 and v2; no_quota
// without one. `root` stands before every path that is read: tests give a tree of their own.
double quota_cpus(const std::string& root = "");

}  // namespace rapt::cpu
