// Parameters of the kernels of prim_hopper.cuh. Compiled by the tests and by NVRTC.
#pragma once

namespace rapt::test {

struct HopperArgs {
  struct alignas(64) TensorMapBytes {  // cuda::TensorMap
    unsigned char bytes[128];
  } map{};
  const void* a = nullptr;
  const void* b = nullptr;
  void* out = nullptr;
  int x = 0, row = 0, head = 0, batch = 0;  // corner of a box
};

}  // namespace rapt::test
