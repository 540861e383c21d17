// Tuned rows: configurations that `rapt tune` measured on a GPU, in a text file that the planner reads. Each line is a
// row for one class of problems on one GPU model. Read by gpu.cpp and the lab; written by lab/tune.cpp. The format is
// described in docs/tuning.md.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "device/device.h"
#include "jit/jit.h"
#include "problem/problem.h"

namespace rapt {

struct TunedRow {
  std::string device;             // tuned_device()
  std::string problem;            // plan_line() of the planned problem: a class of lengths
  std::string words;              // as in --config; `planner` if nothing was faster than the planner's choice
  double us = 0, planner_us = 0;  // medians of this configuration and of the planner's own, from one comparison
  std::string date;               // UTC: 2026-11-29T20:06:22Z
  std::string version;            // version and commit of rapt: "0.1.0 2442592abcde"
  std::string command;            // the command that measured the row
  int line = 0;                   // line number in the file, from 1

  bool keeps_planner() const { return words == "planner"; }
};

// Returns the GPU as a row names it: "NVIDIA H200, sm_90a, 132 multiprocessors".
std::string tuned_device(const Device& device);
std::string to_string(const TunedRow& row);
// Throws Error with the field, its value and the rule.
TunedRow parse_tuned_row(std::string_view line);

// The file that contains the rows.
struct TunedFile {
  std::string path;       // "": no rows are read
  bool named = false;     // RAPT_TUNED names it; then the file must exist
  std::string note = {};  // the error in RAPT_TUNED, or ""
};
// Returns the file that RAPT_TUNED names. RAPT_TUNED is a file with a '/' in its name, or "off". Default: tuned.txt in
// the cache directory.
TunedFile tuned_file(const std::string& cache_directory);

// The rows of a file. Immutable, so any thread may read it.
class TunedRows {
 public:
  TunedRows() = default;
  // Logs a warning if the file is not used, and one for each of the first five lines that are not rows. One more
  // warning gives the number of further lines that are not rows. Never throws because of the file.
  static TunedRows read(const TunedFile& file);

  // Returns the row of the problem's class on this GPU, or null. The result is always null on a CPU, and for
  // `invariant` problems, because their bits must not depend on the lengths. `planned`: see planned_problem().
  const TunedRow* find(const Problem& planned, const Device& device) const;
  const std::string& path() const { return path_; }
  size_t size() const { return rows_.size(); }
  // "FILE:LINE", for messages.
  std::string place(const TunedRow& row) const;

 private:
  std::string path_;
  std::unordered_map<std::string, TunedRow> rows_;  // key: device and problem
};

// If the path is a symbolic link, both functions write the file that the link points to. They hold a lock, so only one
// process writes at a time. They refuse a path that exists and is not a regular file.

// Creates the file with its heading if it does not exist. Returns "" if read() accepts the file, otherwise the reason.
std::string create_tuned_file(const std::string& path);
// Removes the row of the same class and GPU, adds the new row at the end, and keeps all other lines. Writes the file
// completely or not at all. Returns "" or the failure.
std::string replace_tuned_row(const std::string& path, const TunedRow& row);

}  // namespace rapt
