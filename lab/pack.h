// The options of rapt pack, and the part of rapt info that prints kernels. Called by program.cpp and tests.
#pragma once

#include "lab/commands.h"

namespace rapt::lab {

struct PackOptions {
  Common common;  // arch: one or several, separated by commas; threads: number of parallel compilations
  std::vector<std::string> words;
  std::vector<std::string> cases;  // names of built-in sets, or paths of files with problem lines
  std::string output;
  std::string ledger;   // file to compare the kernels' resources with
  bool update = false;  // write the ledger file instead of comparing with it
};

int pack(const PackOptions& options);

// Prints the ledger that was built into this program. If common.arch is given, prints only that architecture.
int info_kernels(const Common& common);

}  // namespace rapt::lab
