// Products of rows on the CPU. Called by src/operations/products.cpp with values that it has checked, while it holds
// the pool.
#pragma once

#include "cpu/threads.h"
#include "kernels/shared/products.h"

namespace rapt::cpu {

// Floats of scratch that each thread needs.
size_t product_scratch_floats();
// `scratch`: that many for each thread of the pool, aligned to 64 bytes. An element's bits depend on its rows alone.
void multiply(ThreadPool& pool, const ProductParams& params, float* scratch);

}  // namespace rapt::cpu
