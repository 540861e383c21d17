// Runs a test in its own process: starts this program again with only this test and another environment. Used by tests
// of things that a process reads only once: environment variables, and libraries in the loader's path.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>

#include "base/error.h"

namespace rapt::test {

// Runs `body` in a child process with `environment` (words of env(1)), and returns the text that the child printed. In
// the child, this function calls body and returns "". `part` is different for each child of a test.
inline std::string in_child(const std::string& environment, const std::function<void()>& body,
                            const std::string& part = "1") {
  constexpr const char* mark = "RAPT_TEST_CHILD";
  if (const char* own = std::getenv(mark)) {
    if (own == part) body();
    return "";
  }
  const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string command =
      concat("exec env ", environment, " ", mark, "=", part, " timeout 60 '", self,
             "' --gtest_brief=1 --gtest_filter=", test.test_suite_name(), ".", test.name(), " 2>&1");
  std::FILE* child = popen(command.c_str(), "r");
  if (child == nullptr) std::abort();
  std::string text;
  char bytes[4096];
  while (const size_t got = std::fread(bytes, 1, sizeof bytes, child)) text.append(bytes, got);
  EXPECT_EQ(pclose(child), 0) << command << "\n" << text;
  EXPECT_NE(text.find("1 test from 1 test suite ran"), std::string::npos) << text;
  return text;
}

inline bool is_child() { return std::getenv("RAPT_TEST_CHILD") != nullptr; }

}  // namespace rapt::test
