// For tests of GPU calls with the stand-in driver of tests/fake_cuda. Each test runs in its own process, with one
// stand-in GPU. Kernels do not run. Needs NVRTC, no GPU.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "base/error.h"
#include "child_process.h"
#include "jit/jit.h"
#include "runtime/context.h"

namespace rapt::test {

// The environment (words of env(1)) of a process with one stand-in GPU of compute capability `sm`.
inline std::string stand_in_environment(int sm) {
  return concat("LD_LIBRARY_PATH='", RAPT_BINARY_DIR, "/fake_cuda':\"$LD_LIBRARY_PATH\" FAKE_CUDA_VERSION=13000 ",
                "FAKE_CUDA_SM=", sm);
}

// Runs `body` in a child process of this test, with one stand-in GPU of compute capability `sm`.
inline void on_stand_in(int sm, const std::function<void()>& body) {
  std::string why;
  if (!is_child() && jit::find_compiler(&why) == nullptr) GTEST_SKIP() << "no NVRTC: " << why;
  in_child(stand_in_environment(sm), body, concat(sm));
}

inline ContextOptions without_cache() {
  ContextOptions options;
  options.store.emplace();
  return options;
}

}  // namespace rapt::test
