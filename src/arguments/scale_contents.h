// What descales and k_mean hold. Called by check_contents (arguments.cpp) once lengths are known to be right; the
// tensors are the host's, or copies of a GPU's. Throws Error naming argument, index, value and rule.
#pragma once

#include "problem/problem.h"
#include "rapt/rapt.h"

namespace rapt {

// Descales are finite and not negative, the mean of the keys is finite. Only what some row or key of a sequence uses is
// looked at: not a packed tensor's rows outside all sequences, nor blocks and tokens past a sequence's end.
void check_scale_contents(const rapt_sdpa_args& args, const Problem& problem);

}  // namespace rapt
