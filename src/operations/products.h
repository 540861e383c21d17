// What rapt_qk and rapt_gemm are to the kernels: both are batches of products of rows. Used by products.cpp and tests.
#pragma once

#include "kernels/shared/products.h"
#include "rapt/rapt.h"

namespace rapt {

// Checks everything about a call, factors on the CPU included, and throws Error for the first rule that it breaks.
ProductParams product_of(const rapt_qk_args& args, void* stream);
ProductParams product_of(const rapt_gemm_args& args, void* stream);

}  // namespace rapt
