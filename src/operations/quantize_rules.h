// The rules of rapt_quantize_args, and the call as plain values once they hold.
// Called by quantize.cpp before anything runs; each sentence names argument, value and rule.
#pragma once

#include "kernels/shared/quantize.h"
#include "rapt/rapt.h"

namespace rapt {

// Shapes, dtypes, devices, memory. Throws Error; never reads contents.
void check_quantize(const rapt_quantize_args& args, void* stream);
// Of checked arguments.
QuantizeParams quantize_params(const rapt_quantize_args& args);
// What only the CPU can afford to read: cu_seqlens, and supplied factors that are used.
void check_quantize_contents(const QuantizeParams& params);

}  // namespace rapt
