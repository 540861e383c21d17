// Tensor maps: what a bulk tensor copy (TMA, sm_90 and newer) knows of a tensor in GPU memory, as a kernel parameter.
// Used by host halves of kernels that load by them; needs an opened driver, but no context and no GPU call.
#pragma once

#include "device/tensor_map_spec.h"

namespace rapt::cuda {

// CUtensorMap. A kernel takes it by value, as a member of its `const __grid_constant__` parameter block.
struct alignas(64) TensorMap {
  unsigned char bytes[128];
};
static_assert(sizeof(TensorMap) == 128 && alignof(TensorMap) == 64);

// Throws Error{invalid_argument} naming what breaks a rule of tensor maps, Error{environment} where the driver cannot
// make them.
TensorMap make_tensor_map(const TensorMapSpec& spec);

}  // namespace rapt::cuda
