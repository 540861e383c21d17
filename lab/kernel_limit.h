// A time limit for kernels on a GPU. A kernel that does not end cannot be stopped: only the end of its process frees
// the GPU. Used by check, bench and profile.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace rapt::lab {

// $RAPT_KERNEL_SECONDS; default 120. 0: no limit. Throws Error{invalid_argument} if it is not a whole number.
int kernel_seconds();

// If it lives longer than kernel_seconds(), it prints a sentence with the problem and the command line, and ends the
// process with exit code 1.
class KernelLimit {
 public:
  KernelLimit(std::string problem, std::string command);
  ~KernelLimit();
  KernelLimit(const KernelLimit&) = delete;
  KernelLimit& operator=(const KernelLimit&) = delete;

 private:
  void wait(int seconds);

  const std::string problem_, command_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;  // guarded by the mutex
  std::thread thread_;
};

}  // namespace rapt::lab
