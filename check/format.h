// Decodes and rounds numbers in all formats. This is code of check/ itself, which follows the formulas of the formats
// and does not use src/. Used by tensor.cpp, oracle, fill, plain and compare.
#pragma once

#include <cstdint>

#include "problem/problem.h"

namespace rapt::check {

// Element `index` of an array of `dtype`. Integers and masks are returned as numbers.
double decode_element(DType dtype, const void* data, int64_t index);
// Stores `value` rounded to nearest even. FP8 saturates and keeps NaN. sim8 stores NaN as the code of the number 0.
void encode_element(DType dtype, void* data, int64_t index, double value);
// Returns the value rounded to `dtype`.
double round_to(DType dtype, double value);

double largest_finite(DType dtype);  // 65504 for f16, 448 for e4m3 and sim8 ...
double unit_roundoff(DType dtype);   // half the distance from 1 to the next number: 2^-24, 2^-11, 2^-8 ...

}  // namespace rapt::check
