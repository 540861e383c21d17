// Compares a kernel with the oracle stage by stage (decoded inputs, scores, row maximum, row sum, P, O), and finds the
// first stage, tile and index that exceeds its bound. Called by `rapt check --stages` and tests.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "check.h"

namespace rapt::check {

// Intermediate values of a kernel, in Reading's numbering. An empty vector means that the stage was not observed.
struct StageTrace {
  std::vector<double> q, k, v;  // decoded and descaled: [row][dim]
  // [row][keys]: s = -inf for masked keys; p = the normalised weight that was multiplied with V
  std::vector<double> s, p;
  std::vector<double> row_max, row_sum;  // they include the sink
  int64_t tile_q = 1, tile_k = 64;       // sizes of tiles, used for the names of tiles
  // For a probe that derives s from p: s cannot be derived if p is smaller than this. 0: s itself was recorded.
  double smallest_p = 0;
};

using TracedKernel = std::function<void(const Problem&, const Inputs&, const Outputs&, StageTrace&)>;

// Derives the stages of any kernel from its outputs. A one-hot V gives P column by column. Then s = ln p + lse, row_max
// is the maximum of s, and row_sum = exp(lse - row_max). Calls with unit vectors give the decoded inputs.
TracedKernel probe(const Kernel& kernel);

struct StageReport {
  bool pass = false, refused = false;  // refused: same meaning as in Result (check.h)
  std::string
      stage;         // the first stage that fails: "inputs", "S", "row_max", "row_sum", "P" or "O"; empty if none fails
  std::string tile;  // "q tile 1, k tile 3"
  std::string index;  // "[b=0, h=1, i=17, j=201]"
  double got = 0, want = 0, bound = 0;
  std::vector<std::string> observed;  // the compared stages, in order
  std::string message;                // the result as a sentence, or the reason why the kernel refused
  std::string command;
};

StageReport check_stages(const Problem& problem, Fill fill, uint64_t seed, const TracedKernel& kernel);

}  // namespace rapt::check
