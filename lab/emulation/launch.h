// One launch of a kernel that runs on the CPU. The program passes it to the library that it compiled for the kernel.
// Included by both (lab/emulate.cpp, entry.h).
#pragma once

#include <cstddef>

namespace rapt::cuda_emulation {

struct Launch {
  const void* params;  // the only parameter of the kernel
  size_t params_bytes;
  unsigned grid[3];
  unsigned threads;     // threads per block
  size_t shared_bytes;  // dynamic shared memory per block
};

// In the emulation the bytes of a tensor map hold this struct. It describes a tensor with five dimensions; dimensions
// that a map does not have are of size 1. `strides` are in bytes and belong to dimensions 1 to 4. box: the elements of
// a box in each dimension. swizzle: the span in bytes within which 16-byte pieces of the box are permuted in shared
// memory; 16: no swizzle.
struct EmulatedMap {
  const char* base;
  long sizes[5], strides[4];
  int box[5];
  int element_bytes, swizzle;
};

// The library's function "rapt_emulate". A synchronisation error of the kernel prints a sentence and ends the process.
using Entry = void (*)(const Launch& launch);

}  // namespace rapt::cuda_emulation
