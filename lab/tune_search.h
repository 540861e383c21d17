// The search of rapt tune: coordinate descent over the fields of a kernel configuration for which there are candidate
// values. It does not use a GPU itself: the caller gives it a function that measures. Called by tune.cpp and by tests.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "device/device.h"
#include "kernels/family.h"
#include "lab/statistics.h"

namespace rapt::lab {

// A configuration of a family, for the problem of the search.
struct TunePoint {
  const Family* family = nullptr;
  KernelConfig config;
  // The family and every field that a search decides, as words of --config: "family=attention_sm80 block_m=64 ...".
  std::string words() const;
};

// One comparison. If the candidate was dropped or wrong, there are no times.
struct Comparison {
  enum Kind { timed, dropped, wrong } kind = timed;  // wrong: the result exceeded the error bounds
  std::string why = {};                 // if dropped or wrong: the reason; if wrong, also names the configuration
  Quartiles candidate = {}, best = {};  // their samples were taken in turns, so clocks affect both in the same way
};
// `thorough`: takes more samples and checks the problem itself. The thorough comparison decides which row is written.
using Compare = std::function<Comparison(const TunePoint& candidate, const TunePoint& best, bool thorough)>;

// A candidate is faster than another configuration if two conditions hold. Its third quartile is below the first
// quartile of the other. Its median is shorter by at least this fraction (1%).
inline constexpr double least_gain = 0.01;
bool is_faster(const Quartiles& candidate, const Quartiles& other);

// A family is not searched if its own configuration takes this many times as long as the best configuration.
inline constexpr double hopeless = 2;

struct TuneRequest {
  const Problem& planned;  // the result of planned_problem()
  const Device& device;
  std::vector<const Family*> families;  // the families to search; each accepts the problem
  TunePoint own;                        // the planner's choice
  Compare compare;
  std::function<bool()> interrupted = [] { return false; };  // called before each candidate
  std::function<bool()> out_of_time = [] { return false; };  // called at the same points
  // Called before each quick comparison of a candidate. change: a text for the progress line. It names the fields that
  // differ from the best configuration of the candidate's family. For the first candidate of a family it names all
  // fields. When the best configurations of two families are compared, it is "the best of its family".
  std::function<void(const TunePoint& candidate, const std::string& change, int tried)> progress = {};
};

struct TuneResult {
  TunePoint best;                  // the planner's choice if nothing is faster
  Quartiles time = {}, own = {};   // `best` and the planner's choice in the thorough comparison; may be the same
  bool faster = false;             // true if `best` is faster than the planner's choice by the rule above
  std::string failure;             // the reason why the planner's choice could not be measured, or ""
  int tried = 0;                   // number of timed configurations
  int refused = 0;                 // number of changes that broke a rule of check_config
  int dropped = 0;                 // number of configurations that spilled registers, did not compile, ...
  std::vector<std::string> wrong;  // one sentence for each configuration with a wrong result
  bool interrupted = false, out_of_time = false;
};
TuneResult tune_search(const TuneRequest& request);

// Sets one field of the best configuration to `value`. If this breaks a rule, also changes one other field to the
// nearest value that makes the configuration legal ("block_m=32" needs "warps_m=2"). The other fields are tried in the
// order of the table. Returns false if no such configuration is legal. why: the first broken rule, or "".
bool change_field(const Problem& planned, const Device& device, const TunePoint& best, const ConfigField& field,
                  int value, TunePoint& changed, std::string& why);

}  // namespace rapt::lab
