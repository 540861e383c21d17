// A thread that waits until the work has ended or the time is over.
#include "lab/kernel_limit.h"

#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstdio>

#include "base/error.h"
#include "base/signals.h"
#include "lab/commands.h"
#include "lab/output.h"
#include "lab/process.h"

namespace rapt::lab {

int kernel_seconds() {
  constexpr int usual = 120;
  const std::string text = environment_value("RAPT_KERNEL_SECONDS");
  if (text.empty()) return usual;
  int seconds = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (status != std::errc() || end != text.data() + text.size() || seconds < 0)
    invalid("RAPT_KERNEL_SECONDS=", text, ": must be a whole number of seconds; 0 means no limit");
  return seconds;
}

KernelLimit::KernelLimit(std::string problem, std::string command)
    : problem_(std::move(problem)), command_(std::move(command)) {
  const SignalBlock in_thread(signals_for_other_threads());  // see cpu/threads.cpp
  if (const int seconds = kernel_seconds(); seconds > 0) thread_ = std::thread([this, seconds] { wait(seconds); });
}

KernelLimit::~KernelLimit() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void KernelLimit::wait(int seconds) {
  std::unique_lock lock(mutex_);
  if (changed_.wait_for(lock, std::chrono::seconds(seconds), [this] { return ended_; })) return;
  std::fflush(stdout);  // prints the rows of problems that are finished
  print_error(
      "rapt: the kernel for \"{}\" did not end within {} s (RAPT_KERNEL_SECONDS), so this process ends\n"
      "to reproduce: {}\n",
      problem_, seconds, command_);
  std::_Exit(exit_check_failed);
}

}  // namespace rapt::lab
