// What rapt profile asks of Nsight Compute (ncu), and how it reads the answer: a table of metrics by architecture, and
// ncu's raw page as CSV. Used by profile.cpp, profile_verdict.cpp and tests; needs neither ncu nor a GPU.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace rapt::lab {

// The names that ncu gets for a GPU of compute capability `sm`. One quantity may have several names: versions of ncu
// and architectures differ.
std::vector<std::string> metric_names(int sm);

// One launch of a kernel, as a row of the raw page.
struct ProfiledKernel {
  int sm = 0;  // of the names: value() reads the table's column for it
  std::string name, block, grid;
  std::map<std::string, double> values;   // by ncu's names, in base units: ns, byte
  std::map<std::string, double> opcodes;  // executed instructions of warps by SASS opcode, where ncu tells them
  std::vector<std::string> not_counted;   // columns without a number ("n/a")

  // The first of the table's names for `key` that has a number.
  std::optional<double> value(std::string_view key) const;
  // Executed instructions of warps: the sum over these opcodes. Nothing where ncu told no opcodes.
  std::optional<double> executed(std::initializer_list<std::string_view> some) const;
};

// Keys of the table that have no number, each with the names that were tried: "fp8_ops (sm__ops_path_... )".
std::vector<std::string> missing_metrics(const ProfiledKernel& kernel);
// "long_scoreboard" -> warps stalled by it per issued instruction, largest first.
std::vector<std::pair<std::string, double>> stall_reasons(const ProfiledKernel& kernel);

// The table of `ncu --csv --page raw` with what stands around it taken away (lines of ==PROF== and of the program).
// "" where there is none.
std::string raw_table(std::string_view text);
// Its rows: column names, units, then a row for each launch. Throws Error{environment} saying what is wrong with it.
std::vector<ProfiledKernel> parse_raw_table(std::string_view table, int sm);

// Which of the requested metrics ncu's messages call unknown.
std::vector<std::string> unknown_metrics(std::string_view messages, const std::vector<std::string>& requested);

}  // namespace rapt::lab
