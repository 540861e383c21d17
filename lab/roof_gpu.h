// The peaks of a GPU, measured in the same run as the shares that are reported. Called by bench and the ladder, in a
// ContextScope of the GPU. The loops are in lab/roof_gpu.cuh; roofline.h applies the peaks to a problem.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "device/device.h"
#include "lab/roof.h"

namespace rapt::lab {

// Takes about a quarter of a second when the loops are in the cache, and 1 GiB for the reads. bf16 is not measured: it
// has the rate of f16 on all these GPUs. Throws Error if the loops that every GPU can run cannot be compiled or run.
// The other loops are then 0 (not measured).
Roof measure_gpu_roof(const Device& device);

// The functions of roof_gpu.cuh that are measured on an architecture ("sm_90a").
std::vector<const char*> roof_loops(std::string_view arch);
// The translation unit that runs `function` of roof_gpu.cuh.
std::string roof_unit(const char* function);
const std::string& roof_source();  // the source roof_gpu.cuh

}  // namespace rapt::lab
