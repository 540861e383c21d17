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
  std::string problem;  // a problem line that needs this kernel
  int threads = 0, registers = 0, barriers = 0;
  int spill_bytes = 0, stack_bytes = 0;  // spill_bytes: the sum for spill stores and spill loads
  int static_bytes = 0, dynamic_bytes = 0;
  int blocks_per_sm = 0;
  double occupancy = 0;  // rounded to thousandths, so that the number is the same after writing and reading
  // The compiler's warnings for this kernel: setmaxnreg ignored (C7508), wgmma serialized (C7512, C7514), ... A kernel
  // with warnings must not be shipped, so the file has no column for them.
  std::vector<std::string> warnings;

  bool operator==(const LedgerRow&) const = default;
  std::string name() const { return arch + " " + family + " " + config; }
};

constexpr double least_occupancy = 0.25;  // a kernel below this needs a reason

// The reason why some kernels have a low occupancy. Written by hand; kept when the ledger is rewritten.
struct LedgerReason {
  // The reason is for all kernels whose names contain all these words: "sm_89 attention_sm80 head_dim=256"
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

// Reads a ledger. If the text is wrong, throws an Error that names `where` and the fault.
Ledger parse_ledger(std::string_view text, const std::string& where);
// The ledger as text, with one row per line.
std::string to_text(Ledger ledger);
// The ledger that this program was built with.
Ledger shipped_ledger();

// A ledger with the rows of compiled kernels, and with the reasons in `before`. Throws Error if an image has no
// resource data.
Ledger ledger_of(const std::vector<PlannedKernel>& kernels, const std::vector<jit::Image>& images,
                 const Ledger& before);

// The faults of a ledger, a sentence for each. Faults are: spills, warnings of the compiler, kernels that do not fit
// their architecture, low occupancy on sm_89 without a reason, reasons that apply to no kernel, and more kernels for
// one architecture than CI can compile.
constexpr size_t kernels_allowed = 150;  // the most for one architecture
std::vector<std::string> faults_of(const Ledger& ledger);
// The differences between `before` and `now`, a sentence for each.
std::vector<std::string> differences(const Ledger& before, const Ledger& now);

}  // namespace rapt::lab
