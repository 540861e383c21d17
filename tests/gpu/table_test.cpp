// Checks the case files on the GPU: every line with every fill that it names is compared with the float64 oracle.
// Prints the family of each problem, and the reasons why attention_sm80 does not compute some of them.
#include <algorithm>
#include <cstdio>
#include <map>

#include "check/cases.h"
#include "gpu_support.h"
#include "kernels/family.h"

namespace rapt::test {
namespace {

class GpuTable : public GpuTest, public testing::WithParamInterface<const char*> {};

// Prints the problems by family, and attention_sm80's reasons by frequency.
void print_families(const std::string& set, const std::vector<check::Case>& cases) {
  std::map<std::string, int> families, reasons;
  for (const check::Case& c : cases) {
    const Problem problem = c.problem();
    const Family& family = chosen_family(problem);
    ++families[family.name];
    std::string why;
    if (&family != &attention_sm80) attention_sm80.accepts(problem, cuda::device(0), &why), ++reasons[why];
  }
  std::string text = "table " + set + ":";
  for (const auto& [name, count] : families) text += " " + std::to_string(count) + " by " + name;
  std::puts(text.c_str());
  std::vector<std::pair<int, std::string>> sorted;
  for (const auto& [why, count] : reasons) sorted.emplace_back(-count, why);
  std::sort(sorted.begin(), sorted.end());
  for (size_t i = 0; i < std::min<size_t>(sorted.size(), 6); ++i)
    std::printf("  %3d not by attention_sm80: %s\n", -sorted[i].first, sorted[i].second.c_str());
  if (sorted.size() > 6) std::printf("  and %zu reasons more\n", sorted.size() - 6);
}

}  // namespace

TEST_P(GpuTable, EveryCase) {
  const std::vector<check::Case> cases = check::load_cases(GetParam(), cases_directory());
  ASSERT_GE(cases.size(), 10u);
  print_families(GetParam(), cases);
  std::vector<Job> jobs;
  for (const check::Case& c : cases)
    for (check::Fill fill : c.fills) jobs.push_back({c.line, fill});
  expect_pass(jobs);
}

INSTANTIATE_TEST_SUITE_P(Set, GpuTable, testing::Values("smoke", "seed", "ragged", "mask", "varlen", "quant", "paged"),
                         [](const auto& instance) { return std::string(instance.param); });

}  // namespace rapt::test
