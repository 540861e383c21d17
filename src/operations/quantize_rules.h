// The rules of rapt_quantize_args, and the checked call as plain values.
// Called by quantize.cpp before anything runs. Each error sentence names argument, value and rule.
#pragma once

#include "kernels/shared/quantize.h"
#include "rapt/rapt.h"

namespace rapt {

// Checks shapes, dtypes, devices, memory. Throws Error. Never reads contents.
void check_quantize(const rapt_quantize_args& args, void* stream);
// Converts arguments that check_quantize() has accepted.
QuantizeParams quantize_params(const rapt_quantize_args& args);
// Checks contents, on the CPU only: cu_seqlens, and supplied scales that are used.
void check_quantize_contents(const QuantizeParams& params);

}  // namespace rapt
