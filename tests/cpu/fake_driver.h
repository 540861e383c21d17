// The controls and counters of the stand-in driver (tests/fake_cuda), which this process has opened as libcuda.so.1.
// Used by tests that run in their own processes. These are started with the stand-in first in the loader's path.
#pragma once

#include <dlfcn.h>

#include <cstdlib>

#include "tests/fake_cuda/fake_cuda.h"

namespace rapt::test {

inline const fake_cuda::Control& fake() {
  static const fake_cuda::Control& control = [&]() -> const fake_cuda::Control& {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    void* get = library == nullptr ? nullptr : dlsym(library, "fake_cuda_control");
    if (get == nullptr) std::abort();
    return *reinterpret_cast<decltype(&fake_cuda_control)>(get)();
  }();
  return control;
}

}  // namespace rapt::test
