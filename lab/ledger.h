// The ledger: what every shipped kernel takes of its architecture, checked in as src/kernels/resources.json beside the
// kernels whose edits change it. Used by pack.cpp (compare, write), info.cpp (print) and tests.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lab/kernels.h"

namespace rapt::lab {

struct LedgerRow {
  std::string arch, family, config;
  std::string problem;  // a line that needs it
  int threads = 0, registers = 0, barriers = 0;
  int spill_bytes = 0, stack_bytes = 0;  // spill: stores and loads
  int static_bytes = 0, dynamic_bytes = 0;
  int blocks_per_sm = 0;
  double occupancy = 0;  // in thousandths, so that text and number agree
  std::string reason;    // why so few blocks: required on sm_89 below a quarter

  bool operator==(const LedgerRow&) const = default;
  std::string name() const { return arch + " " + family + " " + config; }
};

struct Ledger {
  std::string nvrtc;            // the compiler that made it, "13.0.88"
  std::vector<LedgerRow> rows;  // sorted by name
};

// Throws Error naming `where` and what is wrong.
Ledger parse_ledger(std::string_view text, const std::string& where);
// One row a line.
std::string to_text(const Ledger& ledger);
// The one that this program was built with.
Ledger shipped_ledger();

// The rows of compiled kernels; their reasons are those of `before`. Throws Error when an image tells no resources.
Ledger ledger_of(const std::vector<PlannedKernel>& kernels, const std::vector<jit::Image>& images,
                 const Ledger& before);

// What is not allowed in a ledger, each a sentence: spills, kernels that do not fit their architecture, on sm_89 few
// threads on a multiprocessor without a reason, more kernels of an architecture than are compiled in CI.
constexpr size_t kernels_allowed = 150;  // of one architecture
std::vector<std::string> faults_of(const Ledger& ledger);
// How `now` differs from `before`, each a sentence.
std::vector<std::string> differences(const Ledger& before, const Ledger& now);

}  // namespace rapt::lab
