// Converts the tensors of a merge on a GPU to the parameters of its kernel.
#pragma once

#include "kernels/merge/merge_params.h"
#include "rapt/rapt.h"

namespace rapt {

// The rules of rapt_merge (merge.cpp) must have been checked. Throws Error if there are more parts than a launch can
// take.
MergeParams merge_params(const rapt_merge_args& args);

}  // namespace rapt
