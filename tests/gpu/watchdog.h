// The watchdog of rapt_gpu_tests: tests run in a child process that says how far it is; a test that does not end, or
// ends its process, has failed, and a fresh child runs the rest. Used by main.cpp; gpu_support.cpp names problems.
#pragma once

#include <string>

namespace rapt::test {

// The seconds that a test may take: $RAPT_GPU_TEST_SECONDS, or 120. 0: no limit, and no child.
int seconds_of_a_test();

// Runs all tests that GoogleTest's filter selects, in children where `seconds` is above 0; then prints what ran and
// what failed. The calling process must not have used a GPU. Returns the process's exit code.
int run_watched(int seconds);

// While it lives, the problem is one that this process works on: named where the test does not end. Any thread.
class WorkOn {
 public:
  explicit WorkOn(const std::string& problem);
  ~WorkOn();
  WorkOn(const WorkOn&) = delete;
  WorkOn& operator=(const WorkOn&) = delete;

 private:
  std::string problem_;
};

}  // namespace rapt::test
