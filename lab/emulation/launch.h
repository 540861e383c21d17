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

// The library's function "rapt_emulate". A synchronisation error of the kernel prints a sentence and ends the process.
using Entry = void (*)(const Launch& launch);

}  // namespace rapt::cuda_emulation
