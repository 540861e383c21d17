// rapt_quantize on GPUs: at most five kernels.
#pragma once

#include <vector>

#include "kernels/launch_spec.h"
#include "kernels/quantize/quantize_config.h"

namespace rapt {

// The kernels of a call in their order; empty if there is nothing to write. Throws Error if a size exceeds a GPU limit.
std::vector<QuantizeConfig> quantize_configs(const QuantizeParams& params);
KernelUnit quantize_unit(const QuantizeConfig& config);
LaunchSpec quantize_launch(const QuantizeParams& params, const QuantizeConfig& config);

}  // namespace rapt
