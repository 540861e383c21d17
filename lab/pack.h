// rapt pack, and the kernels' part of rapt info: what each is told by program.cpp.
// Called by program.cpp and tests.
#pragma once

#include "lab/commands.h"

namespace rapt::lab {

struct PackOptions {
  Common common;  // arch: several, with commas between; threads: compilers at work
  std::vector<std::string> words;
  std::vector<std::string> cases;  // sets or files of problem lines
  std::string output;
  std::string ledger;   // compare what the kernels take with this file
  bool update = false;  // write it instead
};

int pack(const PackOptions& options);

// The ledger that this program was built with; of common.arch alone where one is given.
int info_kernels(const Common& common);

}  // namespace rapt::lab
