// The metrics that rapt profile requests from Nsight Compute (ncu), by architecture, and the parser of ncu's raw page
// (CSV). Used by profile.cpp, profile_verdict.cpp and tests; needs neither ncu nor a GPU.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace rapt::lab {

// The metric names to request for a GPU of compute capability `sm`. One quantity may have several names, because
// versions of ncu and architectures differ.
std::vector<std::string> metric_names(int sm);

// One launch of a kernel, as a row of the raw page.
struct ProfiledKernel {
  int sm = 0;  // the compute capability, for which value() chooses rows of the metric table
  std::string name, block, grid;
  std::map<std::string, double> values;   // key: ncu's name; value in base units (ns, byte)
  std::map<std::string, double> opcodes;  // executed warp instructions of each SASS opcode; empty if ncu reports none
  std::vector<std::string> not_counted;   // names of columns without a number ("n/a")

  // Returns the value of the metric `key`. The metric table (profile_metrics.cpp) lists several names of ncu for a key.
  // The first name with a number counts.
  std::optional<double> value(std::string_view key) const;
  // The number of executed warp instructions with these opcodes. Empty if ncu reported no opcodes.
  std::optional<double> executed(std::initializer_list<std::string_view> some) const;
};

// The keys for which ncu gave no number. The tried names follow each key: "fp8_ops (sm__ops_path_... )".
std::vector<std::string> missing_metrics(const ProfiledKernel& kernel);
// The stall reasons ("long_scoreboard"), each with the mean number of warps that it stalls per issued instruction. The
// largest number comes first.
std::vector<std::pair<std::string, double>> stall_reasons(const ProfiledKernel& kernel);

// The table in the output of `ncu --csv --page raw`. The lines around it (==PROF== and the program's output) are left
// out. "" if there is no table.
std::string raw_table(std::string_view text);
// The table without the instances of metrics ("1,234 (0x10: 1,000; 0x20: 234)"), because there can be thousands of
// them. The opcodes are kept.
std::string without_instances(std::string_view table);
// Parses such a table: column names, units, then one row per launch. Throws Error{environment} if the table is wrong.
std::vector<ProfiledKernel> parse_raw_table(std::string_view table, int sm);

// The requested metrics that ncu's messages call unknown.
std::vector<std::string> unknown_metrics(std::string_view messages, const std::vector<std::string>& requested);

}  // namespace rapt::lab
