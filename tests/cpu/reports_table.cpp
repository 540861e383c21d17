// Tests the table of the 93 reports. At the end of a test run it prints their numbers:
// `reports: N run, P in tests/python, G need a GPU (S skipped here)`.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <set>
#include <string>

#include "cuda/cuda.h"
#include "reports.h"

namespace rapt::test {
namespace {

template <class Predicate>
int count(const Predicate& predicate) {
  return static_cast<int>(std::count_if(std::begin(reports), std::end(reports), predicate));
}

const testing::TestSuite* reports_suite() {
  const testing::UnitTest& unit = *testing::UnitTest::GetInstance();
  for (int i = 0; i < unit.total_test_suite_count(); ++i)
    if (std::string_view(unit.GetTestSuite(i)->name()) == "Reports") return unit.GetTestSuite(i);
  return nullptr;
}

// Prints the numbers if a report ran. rapt_gpu_tests runs the reports that need GPUs, if there are enough GPUs.
class Tally : public testing::Environment {
 public:
  void TearDown() override {
    const testing::TestSuite* suite = reports_suite();
    if (!suite || !suite->should_run()) return;
    const int gpus = cuda::device_count();
    std::printf("reports: %d run, %d in tests/python, %d need a GPU (%d skipped here)\n",
                count([](const Report& r) { return r.runs == Runs::all; }),
                count([](const Report& r) { return r.runs == Runs::python; }),
                count([](const Report& r) { return r.gpus() > 0; }),
                count([&](const Report& r) { return r.gpus() > gpus; }));
  }
};
const testing::Environment* const tally = testing::AddGlobalTestEnvironment(new Tally);

}  // namespace

TEST(ReportTable, EveryRunningRowHasItsTestAndEveryTestItsRow) {
  const testing::TestSuite* suite = reports_suite();
  ASSERT_NE(suite, nullptr);
  std::set<std::string> tests, rows;
  for (int i = 0; i < suite->total_test_count(); ++i) tests.insert(suite->GetTestInfo(i)->name());
  for (const Report& r : reports)
    if (r.runs != Runs::python) rows.insert(std::string(r.id));
  EXPECT_EQ(tests, rows);
}

TEST(ReportTable, Has93DistinctRows) {
  std::set<std::string_view> ids;
  for (const Report& r : reports) ids.insert(r.id);
  EXPECT_EQ(ids.size(), 93u);
  EXPECT_EQ(std::size(reports), 93u);
}

}  // namespace rapt::test
