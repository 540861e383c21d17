// Parameters of the kernels of launch_facilities.cuh. Compiled by the test and by NVRTC.
#pragma once

namespace rapt::test {

struct FacilitiesArgs {
  struct alignas(64) TensorMapBytes {  // cuda::TensorMap
    unsigned char bytes[128];
  } map;
  unsigned* counter = nullptr;  // zero at launch
  void* out = nullptr;
  int x = 0, y = 0;  // position of the box, which can be outside the tensor
};

}  // namespace rapt::test
