// rapt profile: runs Nsight Compute (ncu) on the GPU kernel of one problem, and prints a verdict with gates.
// Called by program.cpp. ncu reads the counters. It starts this program again with --launch-only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lab/commands.h"

namespace rapt::lab {

struct ProfileOptions {
  Common common;
  std::vector<std::string> words;
  std::vector<std::string> gates;  // "tensor=10", "memory=off"
  std::string name;                // of the result files; "" = from the problem
  uint64_t seed = 1;
  bool launch_only = false;  // started by ncu: a warm call, its check, and the profiled call
};

// Writes results/<card>/<UTC>-profile-<name>.csv and .ncu-rep. No partial file is left behind.
int profile(const ProfileOptions& options);

}  // namespace rapt::lab
