// rapt_gpu_tests: GoogleTest with a short report: what ran on which card, and the failures again at the end.
// Run by ctest (one process a suite; skipped without a GPU), by scripts/gpu_suite.sh on a machine with one.
#include <cstdio>
#include <cstring>

#include "gpu_support.h"

namespace {

// The first lines of what a failed part said.
std::string first_lines(const std::string& text, int count) {
  size_t end = 0;
  for (int line = 0; line < count && end != std::string::npos; ++line) end = text.find('\n', line == 0 ? 0 : end + 1);
  return text.substr(0, end);
}

class Report : public testing::EmptyTestEventListener {
  void OnTestSuiteEnd(const testing::TestSuite& suite) override {
    if (suite.elapsed_time() > 1000)
      std::printf("%s: %.1f s\n", suite.name(), static_cast<double>(suite.elapsed_time()) / 1000);
    std::fflush(stdout);
  }
  void OnTestProgramEnd(const testing::UnitTest& all) override {
    std::printf("GPU test cases: %d skipped, %d run (%s)\n", rapt::test::GpuTest::skipped_count(),
                rapt::test::GpuTest::run_count(), rapt::test::about_gpu().c_str());
    for (int s = 0; s < all.total_test_suite_count(); ++s) {
      const testing::TestSuite& suite = *all.GetTestSuite(s);
      for (int t = 0; t < suite.total_test_count(); ++t) report(*suite.GetTestInfo(t));
    }
    std::fflush(stdout);
  }
  static void report(const testing::TestInfo& test) {
    if (!test.should_run() || !test.result()->Failed()) return;
    std::printf("failed: %s.%s\n", test.test_suite_name(), test.name());
    for (int i = 0; i < test.result()->total_part_count(); ++i) {
      const testing::TestPartResult& part = test.result()->GetTestPartResult(i);
      if (part.failed()) return static_cast<void>(std::printf("  %s\n", first_lines(part.message(), 8).c_str()));
    }
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--about") == 0) {
    std::puts(rapt::test::about_gpu().c_str());
    return rapt::cuda::device_count() > 0 ? 0 : 3;
  }
  GTEST_FLAG_SET(brief, true);
  testing::InitGoogleTest(&argc, argv);
  if (!GTEST_FLAG_GET(list_tests)) testing::UnitTest::GetInstance()->listeners().Append(new Report);
  return RUN_ALL_TESTS();
}
