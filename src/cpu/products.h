// rapt_qk and rapt_gemm on the CPU. Called by src/operations/products.cpp with validated parameters, while it holds the
// thread pool.
#pragma once

#include "cpu/threads.h"
#include "kernels/shared/products.h"

namespace rapt::cpu {

// Floats of scratch per thread.
size_t product_scratch_floats();
// scratch: product_scratch_floats() for each thread of the pool, aligned to 64 bytes. An output element depends only on
// the row of a and the row of b from which it is computed, not on the rest of the call.
void multiply(ThreadPool& pool, const ProductParams& params, float* scratch);

}  // namespace rapt::cpu
