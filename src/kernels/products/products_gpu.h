// rapt_qk and rapt_gemm on GPUs: one kernel per call.
#pragma once

#include "device/device.h"
#include "kernels/launch_spec.h"
#include "kernels/shared/products.h"

namespace rapt {

ProductConfig product_config(const ProductParams& params, const Device& device);
KernelUnit product_unit(const ProductConfig& config);
LaunchSpec product_launch(const ProductParams& params, const ProductConfig& config);

}  // namespace rapt
