// What the kernels of launch_facilities.cuh are called with. Compiled by the test and by NVRTC.
#pragma once

namespace rapt::test {

struct FacilitiesArgs {
  struct alignas(64) TensorMapBytes {  // cuda::TensorMap
    unsigned char bytes[128];
  } map;
  unsigned* counter = nullptr;  // zero at launch
  void* out = nullptr;
  int x = 0, y = 0;  // where the box begins: may lie outside the tensor
};

}  // namespace rapt::test
