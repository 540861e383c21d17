// rapt tune: searches for a faster configuration of a problem's GPU kernel, and writes it as a row into the file that
// the planner reads (runtime/tuned_rows.h). Called by program.cpp. tune.cpp has the command, tune_search.cpp has the
// search, and tune_gpu.cpp has the measurements.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lab/commands.h"
#include "lab/tune_search.h"

namespace rapt::lab {

struct TuneOptions {
  Common common;
  std::vector<std::string> words;
  std::string suite, family, output;
  double budget = 180;  // seconds for each problem
  uint64_t seed = 1;
  bool dry_run = false;  // only list the candidates
  bool again = false;    // also measure problems that have a row of this version
};

// The exit code of a command that Ctrl-C stopped. It is the code that shells use.
inline constexpr int exit_interrupted = 130;

int tune(const TuneOptions& options);

// The part of tune that needs a GPU: compares two configurations on one problem.
class TuneBench {
 public:
  virtual ~TuneBench() = default;
  virtual Comparison compare(const TunePoint& candidate, const TunePoint& best, bool thorough) = 0;
  // A text for the user. It says which results were compared with the oracle: some rows or all rows of the problem
  // itself, and the smaller problem if there was one.
  virtual std::string how_checked() const = 0;
};
std::unique_ptr<TuneBench> gpu_tune_bench(const TuneOptions& options, const Device& device, const Problem& problem);

}  // namespace rapt::lab
