// rapt_quantize: checks the rules, then calls the backend of the tensors. Called by c_api.cpp.
#include "cpu/quantize.h"

#include "arguments/host_lists.h"
#include "cpu/arithmetic.h"
#include "kernels/quantize/quantize_gpu.h"
#include "operations/quantize_rules.h"
#include "operations/sdpa.h"
#include "runtime/context.h"
#include "runtime/gpu_call.h"

namespace rapt {

namespace {

void quantize_on_gpu(Context& context, const QuantizeParams& params, int device_index, void* stream) {
  std::vector<GpuStep> steps;
  for (const QuantizeConfig& config : quantize_configs(params))
    steps.push_back({quantize_unit(config), quantize_launch(params, config)});
  GpuCall(context, {"rapt_quantize", "input", device_index}, stream).run(steps);
}

}  // namespace

void quantize(Context& context, const rapt_quantize_args& args, void* stream) {
  check_quantize(args, stream);
  if (args.input->device.type == RAPT_DEVICE_CUDA)
    return quantize_on_gpu(context, quantize_params(args), args.input->device.index, stream);
  const HostList cu_seqlens("cu_seqlens", args.cu_seqlens, RAPT_I32);
  rapt_quantize_args on_host = args;
  on_host.cu_seqlens = cu_seqlens.get();
  const QuantizeParams params = quantize_params(on_host);
  check_quantize_contents(params);
  const cpu::DefaultArithmetic scope;
  CpuResources& cpu = context.cpu();
  const std::lock_guard<std::mutex> lock(cpu.call_mutex);
  cpu::quantize(cpu.pool, params);
}

}  // namespace rapt
