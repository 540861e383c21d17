// Products of rows for GPU tensors. Called by products.cpp with values that it has checked; enqueues one kernel.
#pragma once

#include "device/device.h"
#include "kernels/family.h"
#include "kernels/shared/products.h"

namespace rapt {

class Context;

// `operation` is named in messages: "rapt_qk".
void multiply_on_gpu(Context& context, const ProductParams& params, int device_index, const char* operation,
                     void* stream);

// Its two halves, for tests, packs and the ledger.
ProductConfig product_config(const ProductParams& params, const Device& device);
KernelUnit product_unit(const ProductConfig& config);

}  // namespace rapt
