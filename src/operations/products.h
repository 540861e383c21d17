// Converts rapt_qk and rapt_gemm to batches of products of rows, for the kernels. Used by products.cpp and tests.
#pragma once

#include "kernels/shared/products.h"
#include "rapt/rapt.h"

namespace rapt {

// Checks all rules of a call (on the CPU also the values of its descales). Throws Error for the first broken rule.
ProductParams product_of(const rapt_qk_args& args, void* stream);
ProductParams product_of(const rapt_gemm_args& args, void* stream);

}  // namespace rapt
