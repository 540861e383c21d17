// The call, top to bottom: arguments -> Problem -> Plan -> workspace -> launch.
#include "sdpa.h"

#include "arguments.h"
#include "context.h"
#include "error.h"
#include "kernels/family.h"
#include "plan.h"

namespace rapt {
namespace {

// The device that the tensors live on. Only the CPU has kernel families so far.
Device device_of(const rapt_tensor& q, void* stream) {
  if (q.device.type == RAPT_DEVICE_CUDA)
    unsupported("q.device = cuda:", q.device.index, ": this build has no GPU kernel families; pass CPU tensors");
  if (q.device.index != 0) invalid("q.device.index = ", q.device.index, ": the CPU has index 0 only");
  if (stream != nullptr) invalid("stream = ", stream, ": must be NULL for CPU tensors");
  return cpu_device();
}

void check_workspace(const rapt_sdpa_args& args, const Plan& plan) {
  if (args.workspace == nullptr) {
    if (args.workspace_bytes != 0)
      invalid("workspace_bytes = ", args.workspace_bytes, ": must be 0 when workspace is NULL");
    return;
  }
  if (args.workspace_bytes < plan.workspace_bytes)
    invalid("workspace_bytes = ", args.workspace_bytes, ": rapt_workspace_size asks for ", plan.workspace_bytes);
  if (reinterpret_cast<uintptr_t>(args.workspace) % 64 != 0)
    invalid("workspace = ", args.workspace, ": must be aligned to 64 bytes");
  check_workspace_disjoint(args, plan.workspace_bytes);
}

}  // namespace

void sdpa(Context& context, const rapt_sdpa_args& args, void* stream) {
  const Problem problem = problem_from(args);
  const Device device = device_of(*args.q, stream);
  const Plan chosen = plan(problem, device);
  check_workspace(args, chosen);
  check_contents(args, problem);
  for (int i = 0; i < chosen.step_count; ++i)
    chosen.steps[i].family->launch(chosen.steps[i].config, {args, problem}, context, args.workspace);
}

void prepare(Context& context, const rapt_sdpa_args& args, void* stream) {
  const Problem problem = problem_from(args);
  const Plan chosen = plan(problem, device_of(*args.q, stream));
  check_workspace(args, chosen);
  CpuResources& cpu = context.cpu();
  const std::lock_guard<std::mutex> turn(cpu.turn);
  if (args.workspace == nullptr) cpu.workspace.reserve(chosen.workspace_bytes);
}

size_t workspace_size(const rapt_sdpa_args& args, size_t& zero_bytes) {
  const Problem problem = problem_from(args);
  const Plan chosen = plan(problem, device_of(*args.q, nullptr));
  zero_bytes = chosen.workspace_zero_bytes;
  return chosen.workspace_bytes;
}

std::string explain(const rapt_sdpa_args& args) {
  const Problem problem = problem_from(args);
  return explain(problem, device_of(*args.q, nullptr));
}

}  // namespace rapt
