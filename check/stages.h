// Compares a kernel with the oracle stage by stage (decoded inputs, scores, row maximum, row sum, P, O), and finds the
// first stage, tile and index that exceeds its bound. Called by `rapt check --stages` and tests.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "check.h"

namespace rapt::check {

// Intermediate values of a kernel, in Reading's numbering. An empty vector: that stage was not observed.
struct StageTrace {
  std::vector<double> q, k, v;  // decoded and descaled: [row][dim]
  // [row][keys]: s = -inf for masked keys; p = the normalised weight that was multiplied with V
  std::vector<double> s, p;
  std::vector<double> row_max, row_sum;  // including the sink
  int64_t tile_q = 1, tile_k = 64;       // for the names of tiles
  // s cannot be derived from a p smaller than this (for a probe that derives s from p). 0: s was recorded itself.
  double smallest_p = 0;
};

using TracedKernel = std::function<void(const Problem&, const Inputs&, const Outputs&, StageTrace&)>;

// Derives the stages of any kernel from its outputs: a one-hot V gives P column by column; s = ln p + lse; the maximum
// is that of s, the sum is exp(lse - max); single keys against unit vectors give the decoded inputs.
TracedKernel probe(const Kernel& kernel);

struct StageReport {
  bool pass = false, refused = false;  // refused: as in check.h's Result
  std::string stage;  // "inputs", "S", "row_max", "row_sum", "P", "O": the first that fails; empty if none fails
  std::string tile;   // "q tile 1, k tile 3"
  std::string index;  // "[b=0, h=1, i=17, j=201]"
  double got = 0, want = 0, bound = 0;
  std::vector<std::string> observed;  // stages that were compared, in order
  std::string message;                // the result as a sentence, or the kernel's reason for refusing
  std::string command;
};

StageReport check_stages(const Problem& problem, Fill fill, uint64_t seed, const TracedKernel& kernel);

}  // namespace rapt::check
