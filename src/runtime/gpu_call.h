// The only path from a LaunchSpec to the driver, for every operation.
#pragma once

#include <vector>

#include "kernels/launch_spec.h"
#include "runtime/gpu.h"

namespace rapt {

class Context;

cuda::Kernel::Launch driver_launch(const LoadedKernel& kernel, const LaunchSpec& spec, cuda::StreamHandle stream);
// Also makes the tensor maps in the parameters.
void launch(const LoadedKernel& kernel, LaunchSpec&& spec, cuda::StreamHandle stream);

// An operation that is a list of kernels without a plan: merge, quantize, qk, gemm.
struct GpuOperation {
  const char* name;    // "rapt_merge"
  const char* tensor;  // the argument that error sentences name for the device: "out"
  int device_index;
};
struct GpuStep {
  KernelUnit unit;
  LaunchSpec spec;
};

// Enters the context of the operation's GPU. run() loads all kernels of the call before it launches the first one.
// Throws Error for a GPU older than sm_80, and during capture if a kernel is not loaded yet.
class GpuCall {
 public:
  GpuCall(Context& context, const GpuOperation& operation, cuda::StreamHandle stream);
  const Device& device() const { return device_; }
  void run(const std::vector<GpuStep>& steps);

 private:
  GpuResources& gpu_;
  const GpuOperation operation_;
  const cuda::StreamHandle stream_;
  const cuda::ContextScope scope_;
  const Device device_;
};

}  // namespace rapt
