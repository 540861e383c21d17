// Rules about the contents of descales and k_mean. Called by check_contents (arguments.cpp) after the lengths were
// checked. The tensors are in host memory, or are copies of GPU tensors. Throws Error with argument, index, value and
// rule.
#pragma once

#include "problem/problem.h"
#include "rapt/rapt.h"

namespace rapt {

// Descales must be finite and not negative; the mean of the keys must be finite. Checks only values that some row or
// key of a sequence uses. Values of packed rows outside all sequences, and of blocks and tokens after the end of a
// sequence, are not checked.
void check_scale_contents(const rapt_sdpa_args& args, const Problem& problem);

}  // namespace rapt
