// Shared memory of kernels that lab/emulate.cpp compiles. Included before the unit's source. Arrays declared in a
// kernel become static, because one block runs at a time. lab/emulate.cpp turns `extern` arrays into pointers to the
// array below.
#pragma once

#include "cuda_words.h"

#undef __shared__
#define __shared__ static

namespace rapt::cuda_emulation {

alignas(1024) inline char dynamic_memory[256 << 10];  // larger than the shared memory of a block on any GPU

struct SharedMemory {
  template <class T>
  operator T*() const {
    return reinterpret_cast<T*>(dynamic_memory);
  }
};

}  // namespace rapt::cuda_emulation
