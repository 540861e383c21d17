// rapt profile: Nsight Compute (ncu) on the GPU kernel of one problem, and a verdict with gates.
// Called by program.cpp. Counters come from ncu, which starts this program again with --launch-only.
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
  bool launch_only = false;  // what ncu starts: a warm call, its check, and the call to be profiled
};

// Writes results/<card>/<UTC>-profile-<name>.csv and .ncu-rep, each whole or absent.
int profile(const ProfileOptions& options);

}  // namespace rapt::lab
