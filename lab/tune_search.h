// The search of rapt tune: coordinate descent over those fields of a kernel configuration that have candidates. It does
// not use a GPU: the caller gives it a function that measures. Called by tune.cpp and by tests.
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
  // The family and every field that a search decides, as --config takes them: "family=attention_sm80 block_m=64 ...".
  std::string words() const;
};

// One comparison. If the candidate was dropped or wrong, there are no times.
struct Comparison {
  enum Kind { timed, dropped, wrong } kind = timed;  // wrong: its result exceeded the error bounds
  std::string why = {};                 // why it was dropped or wrong; for wrong also names the configuration
  Quartiles candidate = {}, best = {};  // their samples alternate, so clocks affect both in the same way
};
// `thorough`: takes more samples and checks the problem itself. The thorough comparison decides which row is written.
using Compare = std::function<Comparison(const TunePoint& candidate, const TunePoint& best, bool thorough)>;

// The rule of all comparisons: the candidate's third quartile is below the other's first quartile, and its median is at
// least 1 % shorter.
inline constexpr double least_gain = 0.01;
bool is_faster(const Quartiles& candidate, const Quartiles& other);

// A family whose own configuration takes this many times as long as the best one is not searched.
inline constexpr double hopeless = 2;

struct TuneRequest {
  const Problem& planned;  // planned_problem()
  const Device& device;
  std::vector<const Family*> families;  // those to search; each accepts the problem
  TunePoint own;                        // the planner's choice
  Compare compare;
  std::function<bool()> interrupted = [] { return false; };  // called before each candidate
  std::function<bool()> out_of_time = [] { return false; };  // called at the same places
  // Called before each quick comparison of a candidate. change: a text for the progress line. It has the fields that
  // differ from the best configuration of the candidate's family. For the first candidate of a family, it has all
  // fields. When the best of one family is compared with the best of another, it is "the best of its family".
  std::function<void(const TunePoint& candidate, const std::string& change, int tried)> progress = {};
};

struct TuneResult {
  TunePoint best;                  // the planner's choice if nothing is faster
  Quartiles time = {}, own = {};   // of the thorough comparison; equal if the planner's choice is the best
  bool faster = false;             // best is faster than the planner's choice by the rule above
  std::string failure;             // why the planner's choice could not be measured, or ""
  int tried = 0;                   // timed configurations
  int refused = 0;                 // broke a rule of check_config
  int dropped = 0;                 // spilled registers, did not compile, ...
  std::vector<std::string> wrong;  // sentences: the configuration and its error
  bool interrupted = false, out_of_time = false;
};
TuneResult tune_search(const TuneRequest& request);

// Sets one field of the best configuration to `value`. If this breaks a rule, also changes one other field to the
// nearest value that makes the configuration legal ("block_m=32" needs "warps_m=2"). The other fields are tried in the
// order of the table. Returns false if no such configuration is legal. why: the first broken rule, or "".
bool change_field(const Problem& planned, const Device& device, const TunePoint& best, const ConfigField& field,
                  int value, TunePoint& changed, std::string& why);

}  // namespace rapt::lab
