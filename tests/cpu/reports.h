// The table of public bug reports that became tests: one row a report, whether it runs here or waits for a feature.
// Read by reports_table.cpp, which checks that every running row has its TEST(Reports, <id>) and prints the tally.
#pragma once

#include <span>
#include <string_view>

namespace rapt::test {

enum class Where { cpu_and_gpu, gpu, cpu, host };

// all: the whole input runs here. part: what this build offers runs; the rest waits. none: nothing runs yet.
enum class Runs { all, part, none };

struct Report {
  std::string_view id;
  std::string_view source;
  std::string_view title;
  Where where;
  Runs runs;
  std::string_view waits_for;  // the missing feature; empty exactly when all runs
};

std::span<const Report> reports();

// Reports that still wait, wholly or in part. Lower it when one starts to run; it never rises.
inline constexpr int pending_reports = 33;

}  // namespace rapt::test
