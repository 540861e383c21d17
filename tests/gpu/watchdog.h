// The watchdog of rapt_gpu_tests. Tests run in a child process that reports its progress. If a test does not end, or
// ends its process, it has failed, and a new child runs the remaining tests. Used by main.cpp; gpu_support.cpp reports
// problems.
#pragma once

#include <string>

namespace rapt::test {

// The longest time of a test in seconds: $RAPT_GPU_TEST_SECONDS, default 120. 0 means no limit and no child process.
int seconds_of_a_test();

// Runs all tests that GoogleTest's filter selects, in child processes if `seconds` is above 0. Then prints how many
// tests ran, and which failed. The calling process must not have used a GPU. Returns the exit code for the process.
int run_watched(int seconds);

// While this object lives, this process works on the problem. If the test does not end, the problem is printed. Any
// thread can use it.
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
