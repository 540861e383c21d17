// rapt_quantize for GPU tensors. Called by quantize.cpp with a call whose rules hold; enqueues at most five
// kernels, none where nothing is to be written.
#pragma once

#include <vector>

#include "kernels/family.h"
#include "kernels/quantize/quantize_config.h"

namespace rapt {

class Context;

void quantize_on_gpu(Context& context, const QuantizeParams& params, int device_index, void* stream);

// Its parts, for tests: the kernels of a call in their order, and the text of each.
std::vector<QuantizeConfig> quantize_configs(const QuantizeParams& params);
KernelUnit quantize_unit(const QuantizeConfig& config);

}  // namespace rapt
