// From the tensors of a call to the AttentionParams that kernels read. Used by every family's launch.
#pragma once

#include "kernels/shared/params.h"

namespace rapt {

struct Binding;

// Needs a validated call. Reads addresses, shapes and strides, never contents.
AttentionParams attention_params(const Binding& binding);

}  // namespace rapt
