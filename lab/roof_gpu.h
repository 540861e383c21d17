// The peak of a GPU, measured in the same run as the share that is reported: products from registers, and streaming
// reads. Called by bench, in a ContextScope of the GPU. The loops are in lab/roof_gpu.cuh.
#pragma once

#include <string>

#include "device/device.h"
#include "lab/roof.h"

namespace rapt::lab {

// f16: mma.sync products summed in float, the instruction that attention_sm80 uses (wgmma of sm_90 is faster). Takes
// about a tenth of a second, and 1 GiB for the reads. Throws Error if the loops cannot be compiled or run.
Roof measure_gpu_roof(const Device& device);

// The translation unit that runs `function` of roof_gpu.cuh.
std::string roof_unit(const char* function);
const std::string& roof_source();  // the source roof_gpu.cuh

}  // namespace rapt::lab
