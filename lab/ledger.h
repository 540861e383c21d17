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

  bool operator==(const LedgerRow&) const = default;
  std::string name() const { return arch + " " + family + " " + config; }
};

constexpr double least_occupancy = 0.25;  // without a reason

// Why some kernels fill less of a multiprocessor. Written by hand, kept when the ledger is written again.
struct LedgerReason {
  std::string kernels;  // words that all stand in the names of those kernels: "sm_89 attention_sm80 head_dim=256"
  std::string reason;
};

struct Ledger {
  std::string nvrtc;  // the compiler that made it, "13.0.88"
  std::vector<LedgerReason> reasons;
  std::vector<LedgerRow> rows;  // sorted by name

  // Indices of the reasons that speak of a row; none where it fills enough.
  std::vector<size_t> reasons_of(const LedgerRow& row) const;
};

// Throws Error naming `where` and what is wrong.
Ledger parse_ledger(std::string_view text, const std::string& where);
// One row a line.
std::string to_text(Ledger ledger);
// The one that this program was built with.
Ledger shipped_ledger();

// The rows of compiled kernels, with the reasons of `before`. Throws Error when an image tells no resources.
Ledger ledger_of(const std::vector<PlannedKernel>& kernels, const std::vector<jit::Image>& images,
                 const Ledger& before);

// What is not allowed in a ledger, each a sentence: spills, kernels that do not fit their architecture, on sm_89 few
// threads on a multiprocessor without a reason, reasons for nothing, more kernels of an architecture than are compiled
// in CI.
constexpr size_t kernels_allowed = 150;  // of one architecture
std::vector<std::string> faults_of(const Ledger& ledger);
// How `now` differs from `before`, each a sentence.
std::vector<std::string> differences(const Ledger& before, const Ledger& now);

}  // namespace rapt::lab
