// From the tensors of a merge on a GPU to the parameters of its kernel.
#pragma once

#include "kernels/merge/merge_params.h"
#include "rapt/rapt.h"

namespace rapt {

// Needs a validated call. Throws Error when there are more parts than a launch takes.
MergeParams merge_params(const rapt_merge_args& args);

}  // namespace rapt
