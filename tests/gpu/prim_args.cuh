// Parameters of the kernels of prim_*.cuh. Compiled by the test and by NVRTC.
#pragma once

namespace rapt::test {

struct PrimArgs {
  const void* a = nullptr;
  const void* b = nullptr;
  void* out = nullptr;
  long n = 0;
};

}  // namespace rapt::test
