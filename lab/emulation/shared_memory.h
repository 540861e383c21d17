// Shared memory of kernels that lab/emulate.cpp compiles: included before the unit's text. What is declared in a kernel
// is static, since one block runs at a time; of `extern` arrays lab/emulate.cpp makes pointers to the one below.
#pragma once

#include "cuda_words.h"

#undef __shared__
#define __shared__ static

namespace rapt::cuda_emulation {

alignas(1024) inline char dynamic_memory[256 << 10];  // more than any GPU gives a block

struct SharedMemory {
  template <class T>
  operator T*() const {
    return reinterpret_cast<T*>(dynamic_memory);
  }
};

}  // namespace rapt::cuda_emulation
