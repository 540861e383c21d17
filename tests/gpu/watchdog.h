// The watchdog of rapt_gpu_tests. Tests run in a child process that reports its progress. A test that does not end, or
// that ends its process, has failed, and a new child runs the rest. Used by main.cpp; gpu_support.cpp reports problems.
#pragma once

#include <string>

namespace rapt::test {

// The maximum seconds of a test: $RAPT_GPU_TEST_SECONDS, default 120. 0: no limit and no child.
int seconds_of_a_test();

// Runs all tests that GoogleTest's filter selects, in children if `seconds` is above 0; then prints the tests that ran
// and failed. The calling process must not have used a GPU. Returns the process's exit code.
int run_watched(int seconds);

// While this object lives, this process works on the problem. It is printed if the test does not end. For any thread.
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
