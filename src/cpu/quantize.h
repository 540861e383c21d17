// rapt_quantize on the CPU. Called by src/operations/quantize.cpp with validated parameters and contents.
#pragma once

#include "cpu/threads.h"
#include "kernels/shared/quantize.h"

namespace rapt::cpu {

// Throws std::bad_alloc before anything is written.
void quantize(ThreadPool& pool, const QuantizeParams& params);

}  // namespace rapt::cpu
