// One launch of a kernel that runs on the CPU: what the program tells the library that it compiled for the kernel.
// Included by both (lab/emulate.cpp, entry.h).
#pragma once

#include <cstddef>

namespace rapt::cuda_emulation {

struct Launch {
  const void* params;  // the kernel's one parameter
  size_t params_bytes;
  unsigned grid[3];
  unsigned threads;     // of a block
  size_t shared_bytes;  // dynamic, of a block
};

// What the bytes of a tensor map are here. A tensor of four dimensions of 16-bit elements; strides in bytes, of
// dimensions 1 to 3; a box of `columns` x `rows` elements under the 128-byte swizzle.
struct EmulatedMap {
  const char* base;
  long sizes[4], strides[3];
  int columns, rows;
};

// Its entry, by the name "rapt_emulate". A mistake of the kernel's synchronisation ends the process with a sentence.
using Entry = void (*)(const Launch& launch);

}  // namespace rapt::cuda_emulation
