// Converts the tensors of a call to the AttentionParams that kernels read.
#pragma once

#include "kernels/shared/params.h"
#include "problem/problem.h"
#include "rapt/rapt.h"

namespace rapt {

// The arguments must obey the rules of problem_from(). Reads addresses, shapes and strides, never contents.
AttentionParams attention_params(const rapt_sdpa_args& args, const Problem& problem);

}  // namespace rapt
