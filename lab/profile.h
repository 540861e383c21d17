// rapt profile: runs Nsight Compute (ncu) on the GPU kernel of one problem, and prints a verdict with gates. ncu starts
// this program again with --launch-only, and reads the counters. Without ncu, or with --trace, the kernel itself
// records time stamps at the borders of its stages. Called by program.cpp.
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
  std::string name;                // last part of the names of the result files; "": made from the problem
  uint64_t seed = 1;
  bool trace = false;        // use time stamps instead of ncu
  bool launch_only = false;  // this run is under ncu: it makes one call, checks it, then makes the profiled call
};

// Writes results/<card>/<UTC>-profile-<name>.csv and .ncu-rep, or -trace-<name>.json. No partial file is left behind.
int profile(const ProfileOptions& options);

// The part of profile() that uses time stamps (profile_trace.cpp). path: the file to write. why: the reason why ncu is
// not used; "" with --trace.
int profile_by_trace(const ProfileOptions& options, const Problem& problem, const Device& device,
                     const std::string& config, const std::string& path, const std::string& why);

}  // namespace rapt::lab
