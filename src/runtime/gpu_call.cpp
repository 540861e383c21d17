// Launches one kernel, or the list of kernels of an operation without a plan.
#include "runtime/gpu_call.h"

#include <cstring>

#include "base/error.h"
#include "cuda/tensor_map.h"
#include "runtime/context.h"

namespace rapt {

cuda::Kernel::Launch driver_launch(const LoadedKernel& kernel, const LaunchSpec& spec, cuda::StreamHandle stream) {
  cuda::Kernel::Launch launch;
  launch.grid_x = spec.grid_x, launch.grid_y = spec.grid_y, launch.grid_z = spec.grid_z;
  launch.cluster_x = spec.cluster_x, launch.cluster_y = spec.cluster_y, launch.cluster_z = spec.cluster_z;
  launch.threads = static_cast<unsigned>(kernel.unit.threads);
  launch.smem_bytes = kernel.unit.smem_bytes;
  launch.stream = stream;
  launch.programmatic = spec.programmatic;
  launch.cooperative = spec.cooperative;
  return launch;
}

void launch(const LoadedKernel& kernel, LaunchSpec&& spec, cuda::StreamHandle stream) {
  if (spec.empty()) return;
  for (const LaunchSpec::Map* map = spec.begin_maps(); map != spec.end_maps(); ++map) {
    const cuda::TensorMap made = cuda::make_tensor_map(map->spec);
    static_assert(sizeof made == LaunchSpec::map_bytes);
    std::memcpy(spec.params() + map->offset, &made, sizeof made);
  }
  kernel.kernel->launch(driver_launch(kernel, spec, stream), spec.params());
}

GpuCall::GpuCall(Context& context, const GpuOperation& operation, cuda::StreamHandle stream)
    : gpu_(context.gpu()),
      operation_(operation),
      stream_(stream),
      scope_(operation.device_index, stream),
      device_(gpu_.device(operation.device_index)) {
  if (device_.sm < 80)
    unsupported(operation.tensor, ".device: ", device_.name, " is sm_", device_.sm, ", must be sm_80 or newer");
}

void GpuCall::run(const std::vector<GpuStep>& steps) {
  std::vector<const LoadedKernel*> kernels;
  for (const GpuStep& step : steps) {
    if (!gpu_.has_kernel(device_, step.unit) && cuda::is_capturing(stream_))
      invalid("stream = ", stream_, ": is being captured, but a kernel of this call is not loaded yet; call ",
              operation_.name, " once with such tensors before the capture");
    kernels.push_back(&gpu_.kernel(device_, step.unit, operation_.name));
  }
  for (size_t i = 0; i < steps.size(); ++i) launch(*kernels[i], LaunchSpec(steps[i].spec), stream_);
}

}  // namespace rapt
