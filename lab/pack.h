// The options of rapt pack, and of the kernels' part of rapt info.
// Called by program.cpp and tests.
#pragma once

#include "lab/commands.h"

namespace rapt::lab {

struct PackOptions {
  Common common;  // arch: several, separated by commas; threads: number of parallel compilations
  std::vector<std::string> words;
  std::vector<std::string> cases;  // sets or files of problem lines
  std::string output;
  std::string ledger;   // file to compare the kernels' resources with
  bool update = false;  // write that file instead
};

int pack(const PackOptions& options);

// Prints the ledger that this program was built with; if common.arch is given, only that architecture.
int info_kernels(const Common& common);

}  // namespace rapt::lab
