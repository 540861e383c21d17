// One launch of a kernel that runs on the CPU. The program passes it to the library that it compiled for the kernel.
// Included by both (lab/emulate.cpp, entry.h).
#pragma once

#include <cstddef>

namespace rapt::cuda_emulation {

struct Launch {
  const void* params;  // the kernel's one parameter
  size_t params_bytes;
  unsigned grid[3];
  unsigned threads;     // per block
  size_t shared_bytes;  // dynamic, per block
};

// What the bytes of a tensor map are here. A tensor of four dimensions of 16-bit elements; strides in bytes, of
// dimensions 1 to 3; a box of `columns` x `rows` x `planes` elements of dimensions 0 to 2 under the 128-byte swizzle.
struct EmulatedMap {
  const char* base;
  long sizes[4], strides[3];
  int columns, rows, planes;
};

// The library's function "rapt_emulate". A synchronisation error of the kernel prints a sentence and ends the process.
using Entry = void (*)(const Launch& launch);

}  // namespace rapt::cuda_emulation
