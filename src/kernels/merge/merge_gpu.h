// rapt_merge for GPU tensors: one kernel.
#pragma once

#include "kernels/launch_spec.h"
#include "kernels/merge/merge_params.h"

namespace rapt {

KernelUnit merge_unit(const MergeConfig& config);
LaunchSpec merge_launch(const MergeParams& params, const MergeConfig& config);

}  // namespace rapt
