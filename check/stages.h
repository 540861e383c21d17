// Stage by stage: inputs after decoding, scores, row maximum, row sum, P and O of a kernel beside the oracle's, to name
// the first stage, tile and index that leaves its bound. Called by `rapt check --stages` and tests.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "check.h"

namespace rapt::check {

// What a kernel computed inside, in Reading's numbering. An empty vector: that stage was not observed.
struct StageTrace {
  std::vector<double> q, k, v;           // decoded and descaled: [row][dim]
  std::vector<double> s, p;              // [row][keys]: s = -inf for hidden keys; p = the weight that met V, normalised
  std::vector<double> row_max, row_sum;  // the sink included
  int64_t tile_q = 1, tile_k = 64;       // to name tiles by
  // p below this was too small to tell s from (a probe that derives s from p); 0 = s was recorded itself.
  double smallest_p = 0;
};

using TracedKernel = std::function<void(const Problem&, const Inputs&, const Outputs&, StageTrace&)>;

// Sees into any kernel through its outputs alone: one-hot V gives P column by column, s = ln p + lse, the maximum is
// that of s and the sum exp(lse - max); single keys against unit vectors give the decoded inputs.
TracedKernel probe(const Kernel& kernel);

struct StageReport {
  bool pass = false, refused = false;  // refused: as in check.h's Result
  std::string stage;  // "inputs", "S", "row_max", "row_sum", "P", "O" - the first that fails; empty when none does
  std::string tile;   // "q tile 1, k tile 3"
  std::string index;  // "[b=0, h=1, i=17, j=201]"
  double got = 0, want = 0, bound = 0;
  std::vector<std::string> observed;  // stages that were compared, in order
  std::string message;                // the sentence, or the refusal of the kernel
  std::string command;
};

StageReport check_stages(const Problem& problem, Fill fill, uint64_t seed, const TracedKernel& kernel);

}  // namespace rapt::check
