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

// In the emulation the bytes of a tensor map hold this struct. It describes a tensor with four dimensions of 16-bit
// elements. `strides` are in bytes and belong to dimensions 1 to 3. A box has `columns` x `rows` x `planes` elements of
// dimensions 0 to 2, and is stored in shared memory with the 128-byte swizzle.
struct EmulatedMap {
  const char* base;
  long sizes[4], strides[3];
  int columns, rows, planes;
};

// The library's function "rapt_emulate". A synchronisation error of the kernel prints a sentence and ends the process.
using Entry = void (*)(const Launch& launch);

}  // namespace rapt::cuda_emulation
