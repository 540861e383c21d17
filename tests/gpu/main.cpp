// The program rapt_gpu_tests: GoogleTest with a short report, which has the number of tests, the GPU, and all failures
// again at the end. A watchdog ends tests that hang (watchdog.h). ctest runs the program (one process for each suite;
// skipped without a GPU). On a machine with a GPU, scripts/gpu_suite.sh runs it.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "gpu_support.h"
#include "watchdog.h"

namespace rapt::test {
void register_watchdog_probes();  // tests that hang and crash: watchdog_test.cpp
}

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--about") == 0) {
    std::puts(rapt::test::about_gpu().c_str());
    return rapt::cuda::device_count() > 0 ? 0 : 3;
  }
  setenv("RAPT_TUNED", "off", 0);  // the tests expect the planner's own choices
  GTEST_FLAG_SET(brief, true);
  if (std::getenv("RAPT_GPU_TEST_PROBES") != nullptr) rapt::test::register_watchdog_probes();
  testing::InitGoogleTest(&argc, argv);
  const bool asks_help = argc == 2 && std::strcmp(argv[1], "--help") == 0;
  if (GTEST_FLAG_GET(list_tests) || asks_help) return RUN_ALL_TESTS();  // nothing runs
  return rapt::test::run_watched(rapt::test::seconds_of_a_test());
}
