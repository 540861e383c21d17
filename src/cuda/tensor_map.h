// Tensor maps: the description of a tensor in GPU memory for bulk tensor copies (TMA, sm_90 and newer), as a kernel
// parameter. Used by host halves of kernels that use TMA. Needs an opened driver, but no context and no GPU call.
#pragma once

#include "device/tensor_map_spec.h"

namespace rapt::cuda {

// CUtensorMap. A kernel takes it by value, as a member of its `const __grid_constant__` parameter struct.
struct alignas(64) TensorMap {
  unsigned char bytes[128];
};
static_assert(sizeof(TensorMap) == 128 && alignof(TensorMap) == 64);

// Throws Error{invalid_argument} with the broken rule, and Error{environment} if the driver has no tensor maps. Each
// thread keeps the maps of its recent calls: a map depends only on its description.
TensorMap make_tensor_map(const TensorMapSpec& spec);

}  // namespace rapt::cuda
