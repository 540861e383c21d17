// The peaks of a GPU. They are measured in the same run in which shares of them are reported. Called by bench and the
// ladder, in a ContextScope of the GPU. The loops are in lab/roof_gpu.cuh; roofline.h applies the peaks to a problem.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "device/device.h"
#include "lab/roof.h"

namespace rapt::lab {

// Takes about a quarter of a second if the compiled loops are in the cache, and uses 1 GiB of GPU memory. bf16 is not
// measured, because it has the rate of f16 on all these GPUs. Throws Error if a loop that every GPU supports cannot be
// compiled or run. If another loop cannot be compiled or run, its rate is 0 (not measured).
Roof measure_gpu_roof(const Device& device);

// The functions of roof_gpu.cuh that are measured on an architecture ("sm_90a").
std::vector<const char*> roof_loops(std::string_view arch);
// The translation unit that runs `function` of roof_gpu.cuh.
std::string roof_unit(const char* function);
const std::string& roof_source();  // the text of roof_gpu.cuh

}  // namespace rapt::lab
