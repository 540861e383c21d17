// A time limit for kernels on a GPU. An endless kernel stops only if its process ends, so at the limit the process
// ends. Used by check, bench and profile.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace rapt::lab {

// The value of $RAPT_KERNEL_SECONDS; default 120. 0 means no limit. Throws Error{invalid_argument} if the value is not
// a whole number.
int kernel_seconds();

// If an object of this class lives longer than kernel_seconds(), it prints a sentence with the problem and the command
// line, and ends the process with exit code 1.
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
