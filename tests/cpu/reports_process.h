// Runs the test of a report in its own process: starts this program again with only this test and another environment.
// Used by tests that need a special environment, a stand-in driver, or several processes at the same time.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/error.h"

namespace rapt::test {

// The role of a child; "" in the process that runs the tests.
inline std::string report_role() {
  const char* role = std::getenv("RAPT_REPORT_ROLE");
  return role ? role : "";
}

class ReportProcess {
 public:
  // `environment`: words of env(1), such as "-u HOME FAKE_CUDA_SM=80".
  ReportProcess(const std::string& report, const std::string& role, const std::string& environment) {
    const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
    command_ = concat("exec env ", environment, " RAPT_REPORT_ROLE='", role, "' '", self,
                      "' --gtest_brief=1 --gtest_filter=Reports.", report, " 2>&1");
    child_ = popen(command_.c_str(), "r");
    if (child_ == nullptr) std::abort();
  }
  ~ReportProcess() {
    if (child_ != nullptr) pclose(child_);
  }
  ReportProcess(ReportProcess&& other) noexcept : command_(std::move(other.command_)), child_(other.child_) {
    other.child_ = nullptr;
  }
  ReportProcess& operator=(ReportProcess&&) = delete;

  // Waits for the end of the process, and returns its output.
  std::string output() {
    std::string text;
    char part[4096];
    while (const size_t bytes = std::fread(part, 1, sizeof part, child_)) text.append(part, bytes);
    status_ = pclose(child_);
    child_ = nullptr;
    return text;
  }
  // The same, and expects the process to succeed.
  std::string finish() {
    std::string text = output();
    EXPECT_EQ(status_, 0) << command_ << "\n" << text;
    EXPECT_NE(text.find("1 test from 1 test suite ran"), std::string::npos) << text;
    return text;
  }

 private:
  std::string command_;
  std::FILE* child_ = nullptr;
  int status_ = -1;
};

}  // namespace rapt::test
