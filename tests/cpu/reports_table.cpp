// Tests the table of the 93 reports. At the end of a test run it prints their numbers:
// `reports: N run, G need a GPU (S skipped here), M pending`.
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

bool is_pending(const Report& report) { return report.pending(); }

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
    std::printf("reports: %d run, %d in tests/python, %d need a GPU (%d skipped here), %d pending\n",
                count([](const Report& r) { return r.runs == Runs::all; }),
                count([](const Report& r) { return r.runs == Runs::python; }),
                count([](const Report& r) { return r.gpus() > 0; }),
                count([&](const Report& r) { return r.gpus() > gpus; }), count(is_pending));
    for (const Report& r : reports)
      if (r.pending())
        std::printf("  %-4s waits for %s%s\n", std::string(r.id).c_str(), std::string(r.waits_for).c_str(),
                    r.runs == Runs::part       ? " (the rest of it runs)"
                    : r.runs == Runs::gpu_part ? " (the rest of it runs on a GPU)"
                                               : "");
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
    if (r.runs != Runs::none && r.runs != Runs::gpu_part && r.runs != Runs::python) rows.insert(std::string(r.id));
  EXPECT_EQ(tests, rows);
}

TEST(ReportTable, Has93DistinctRowsAndAReasonForEachThatWaits) {
  std::set<std::string_view> ids;
  for (const Report& r : reports) {
    ids.insert(r.id);
    EXPECT_EQ(!r.pending(), r.waits_for.empty()) << r.id;
  }
  EXPECT_EQ(ids.size(), 93u);
  EXPECT_EQ(std::size(reports), 93u);
}

TEST(ReportTable, PendingOnlyFalls) {
  EXPECT_EQ(count(is_pending), pending_reports) << "a report that starts to run lowers pending_reports in reports.h; "
                                                   "it is never raised";
}

}  // namespace rapt::test
