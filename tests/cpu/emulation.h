// The emulation of CUDA (lab/emulation) for tests of kernels. Included before the kernel's .cuh.
#pragma once

#include "lab/emulation/cuda_words.h"

#if defined(RAPT_NO_FIBERS)
#define RAPT_NEEDS_FIBERS() GTEST_SKIP() << "fibers cannot run under the thread sanitizer"
#else
#define RAPT_NEEDS_FIBERS() static_cast<void>(0)
#endif
