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
  int sm = 0;  // the compute capability; value() uses its column of the metric table
  std::string name, block, grid;
  std::map<std::string, double> values;   // by ncu's names, in base units: ns, byte
  std::map<std::string, double> opcodes;  // warp instructions executed, by SASS opcode, if ncu reports them
  std::vector<std::string> not_counted;   // columns without a number ("n/a")

  // Returns the value of the metric `key`. The metric table (profile_metrics.cpp) lists several names of ncu for a key.
  // The first name with a number counts.
  std::optional<double> value(std::string_view key) const;
  // Warp instructions executed: the sum over these opcodes. Empty if ncu reported no opcodes.
  std::optional<double> executed(std::initializer_list<std::string_view> some) const;
};

// The keys for which ncu gave no number, each with the names that were tried: "fp8_ops (sm__ops_path_... )".
std::vector<std::string> missing_metrics(const ProfiledKernel& kernel);
// The stall reasons ("long_scoreboard"), each with the mean number of warps it stalls per issue. Largest first.
std::vector<std::pair<std::string, double>> stall_reasons(const ProfiledKernel& kernel);

// ncu's table in the output of `ncu --csv --page raw`, without the lines around it (==PROF== and the program's output).
// "" if there is no table.
std::string raw_table(std::string_view text);
// The table without the instances of metrics ("1,234 (0x10: 1,000; 0x20: 234)"), which may be thousands; the opcodes
// are kept.
std::string without_instances(std::string_view table);
// Parses such a table: column names, units, then one row per launch. Throws Error{environment} if the table is wrong.
std::vector<ProfiledKernel> parse_raw_table(std::string_view table, int sm);

// The requested metrics that ncu's messages call unknown.
std::vector<std::string> unknown_metrics(std::string_view messages, const std::vector<std::string>& requested);

}  // namespace rapt::lab
