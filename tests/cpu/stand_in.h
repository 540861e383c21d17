// For tests of GPU calls with the stand-in driver of tests/fake_cuda. Each test runs in its own process, with one
// stand-in GPU. Kernels do not run. Needs NVRTC, no GPU. Included by products_launch_test.cpp and
// quantize_launch_test.cpp.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>

#include "base/error.h"
#include "jit/jit.h"
#include "runtime/context.h"

namespace rapt::test {

// Runs body in a new process of this test, with one stand-in GPU of a compute capability.
inline void on_stand_in(int sm, const std::function<void()>& body) {
  constexpr const char* child_mark = "RAPT_STAND_IN_CHILD";
  if (std::getenv(child_mark) != nullptr) {
    if (std::getenv(child_mark) == std::to_string(sm)) body();
    return;
  }
  std::string why;
  if (jit::find_compiler(&why) == nullptr) GTEST_SKIP() << "no NVRTC: " << why;
  const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
  const std::string command = concat(
      "env LD_LIBRARY_PATH='", RAPT_BINARY_DIR, "/fake_cuda':\"$LD_LIBRARY_PATH\" FAKE_CUDA_VERSION=13000",
      " FAKE_CUDA_SM=", sm, " ", child_mark, "=", sm, " '", std::filesystem::read_symlink("/proc/self/exe").string(),
      "' --gtest_brief=1 --gtest_filter=", test.test_suite_name(), ".", test.name(), " 2>&1");
  std::FILE* child = popen(command.c_str(), "r");
  ASSERT_NE(child, nullptr);
  std::string text;
  char part[4096];
  while (const size_t bytes = std::fread(part, 1, sizeof part, child)) text.append(part, bytes);
  EXPECT_EQ(pclose(child), 0) << text;
  EXPECT_NE(text.find("1 test from 1 test suite ran"), std::string::npos) << text;
}

inline ContextOptions without_cache() {
  ContextOptions options;
  options.store.emplace();
  return options;
}

}  // namespace rapt::test
