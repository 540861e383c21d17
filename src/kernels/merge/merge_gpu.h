// rapt_merge for GPU tensors. Called by merge.cpp with arguments that it has checked; enqueues one kernel.
#pragma once

#include "kernels/family.h"
#include "kernels/merge/merge_params.h"
#include "rapt/rapt.h"

namespace rapt {

class Context;

void merge_on_gpu(Context& context, const rapt_merge_args& args, void* stream);

// Its two halves, for tests and packs. Throws Error when there are more parts than a launch takes.
MergeParams merge_params(const rapt_merge_args& args);
KernelUnit merge_unit(DType out);

}  // namespace rapt
