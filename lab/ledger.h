// The ledger: the resources of every shipped kernel on its architecture. It is checked in as
// src/kernels/resources.json. Used by pack.cpp (compare, write), info.cpp (print) and tests.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lab/kernels.h"

namespace rapt::lab {

struct LedgerRow {
  std::string arch, family, config;
  std::string problem;  // a problem line that needs it
  int threads = 0, registers = 0, barriers = 0;
  int spill_bytes = 0, stack_bytes = 0;  // spill: bytes of spill stores and loads
  int static_bytes = 0, dynamic_bytes = 0;
  int blocks_per_sm = 0;
  double occupancy = 0;  // rounded to thousandths, so text and number agree
  // Of the compiler, for this compilation: setmaxnreg ignored (C7508), wgmma serialized (C7512, C7514), ... They are a
  // fault, so the file has no column for them.
  std::vector<std::string> warnings;

  bool operator==(const LedgerRow&) const = default;
  std::string name() const { return arch + " " + family + " " + config; }
};

constexpr double least_occupancy = 0.25;  // the minimum without a reason

// The reason why some kernels have a low occupancy. Written by hand; kept when the ledger is rewritten.
struct LedgerReason {
  // Words; the reason is for all kernels whose names contain them: "sm_89 attention_sm80 head_dim=256"
  std::string kernels;
  std::string reason;
};

struct Ledger {
  std::string nvrtc;  // version of the compiler: "13.0.88"
  std::vector<LedgerReason> reasons;
  std::vector<LedgerRow> rows;  // sorted by name

  // Indices of the reasons for a row. Empty if its occupancy is sufficient.
  std::vector<size_t> reasons_of(const LedgerRow& row) const;
};

// Throws Error with `where` and the fault.
Ledger parse_ledger(std::string_view text, const std::string& where);
// One row per line.
std::string to_text(Ledger ledger);
// The ledger that this program was built with.
Ledger shipped_ledger();

// The rows of compiled kernels, with the reasons of `before`. Throws Error if an image has no resource data.
Ledger ledger_of(const std::vector<PlannedKernel>& kernels, const std::vector<jit::Image>& images,
                 const Ledger& before);

// The faults of a ledger, a sentence for each: spills, warnings of the compiler, kernels that do not fit their
// architecture, low occupancy on sm_89 without a reason, reasons that apply to no kernel, and more kernels of an
// architecture than CI can compile.
constexpr size_t kernels_allowed = 150;  // of one architecture
std::vector<std::string> faults_of(const Ledger& ledger);
// The differences between `before` and `now`, a sentence for each.
std::vector<std::string> differences(const Ledger& before, const Ledger& now);

}  // namespace rapt::lab
