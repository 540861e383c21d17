// libFuzzer harness of the problem line: any bytes either parse or throw Error. A parsed problem must print, parse to
// the same problem again, and have finite flops and bytes. Seeds: corpus/problem_line. Lines with '@' are skipped,
// because they read files.
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "base/error.h"
#include "problem/problem.h"

namespace {
[[noreturn]] void defect(const char* what, const std::string& line) {
  std::fprintf(stderr, "%s: %s\n", what, line.c_str());
  std::abort();
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view line(reinterpret_cast<const char*>(data), size);
  if (line.find('@') != std::string_view::npos) return 0;
  rapt::Problem problem;
  try {
    problem = rapt::parse_problem(line);
  } catch (const rapt::Error&) {
    return 0;
  }
  const std::string printed = rapt::to_string(problem);
  rapt::Problem again;
  try {
    again = rapt::parse_problem(printed);
  } catch (const rapt::Error& error) {
    defect(error.what(), printed);
  }
  if (!(again == problem)) defect("does not round-trip", printed);
  if (rapt::to_string(again) != printed) defect("prints differently", printed);
  if (!rapt::same_plan(again, problem) || rapt::plan_hash(again) != rapt::plan_hash(problem))
    defect("different plan", printed);
  if (!std::isfinite(rapt::flops(problem)) || rapt::flops(problem) < 0) defect("flops", printed);
  if (!std::isfinite(rapt::bytes(problem)) || rapt::bytes(problem) < 0) defect("bytes", printed);
  if (problem.batch > 0) rapt::sequence(problem, problem.batch - 1);
  return 0;
}
