// Executes a call of attention from start to end: arguments -> Problem -> Plan -> workspace -> launch.
#include "operations/sdpa.h"

#include <deque>

#include "arguments/arguments.h"
#include "arguments/device_contents.h"
#include "arguments/host_lists.h"
#include "arguments/sdpa_arguments.h"
#include "base/error.h"
#include "cpu/arithmetic.h"
#include "cuda/cuda.h"
#include "kernels/family.h"
#include "operations/bind.h"
#include "runtime/context.h"
#include "runtime/gpu.h"
#include "runtime/gpu_call.h"
#include "runtime/plan.h"
#include "runtime/recent_calls.h"

namespace rapt {
namespace {

// The arguments must have passed problem_from(), so q is not NULL.
// NOLINTNEXTLINE(clang-analyzer-core.NullDereference): problem_from() has refused a call without q
bool on_gpu(const rapt_sdpa_args& args) { return args.q->device.type == RAPT_DEVICE_CUDA; }

void check_cpu(const rapt_sdpa_args& args, void* stream) {
  if (args.q->device.index != 0) invalid("q.device.index = ", args.q->device.index, ": the CPU has index 0 only");
  if (stream != nullptr) invalid("stream = ", stream, ": must be NULL for CPU tensors");
}

void check_workspace(const rapt_sdpa_args& args, const Plan& plan) {
  if (args.workspace == nullptr) {
    if (args.workspace_bytes != 0)
      invalid("workspace_bytes = ", args.workspace_bytes, ": must be 0 if workspace is NULL");
    return;
  }
  if (args.workspace_bytes < plan.workspace_bytes)
    invalid("workspace_bytes = ", args.workspace_bytes, ": must be at least the result of rapt_workspace_size, ",
            plan.workspace_bytes);
  if (reinterpret_cast<uintptr_t>(args.workspace) % 64 != 0)
    invalid("workspace = ", args.workspace, ": must be aligned to 64 bytes");
  check_workspace_disjoint(args, plan.workspace_bytes);
}

// Returns a plan whose kernels are compiled and loaded. While the stream is captured, loading a kernel is not allowed:
// depending on the driver, the loading would become part of the graph or break the graph. New lengths need no loading
// if their kernels are already loaded.
std::shared_ptr<const LoadedPlan> ready_plan(GpuResources& gpu, const Problem& problem, int index, void* stream) {
  if (auto known = gpu.find(problem, index)) return known;
  if (!cuda::is_capturing(stream)) return gpu.load(problem, gpu.device(index));
  if (auto ready = gpu.plan_of_loaded_kernels(problem, gpu.device(index))) return ready;
  invalid("stream = ", stream,
          ": is being captured, but the kernel of this call is not loaded yet; call rapt_prepare with \"",
          to_string(problem), "\" first");
}

// The arguments, with the index arrays (cu_seqlens, seqused, starts) converted to the integer type that kernels read.
// In names, "list" means such an array.
class HostArguments {
 public:
  explicit HostArguments(const rapt_sdpa_args& args) : args_(args) {
    for (const TensorArgument& argument : tensor_arguments)
      if (argument.is_list())
        args_.*argument.member = lists_.emplace_back(argument.name, args.*argument.member, argument.list_dtype()).get();
  }
  const rapt_sdpa_args& get() const { return args_; }

 private:
  rapt_sdpa_args args_;
  std::deque<HostList> lists_;
};

void sdpa_on_cpu(Context& context, const rapt_sdpa_args& given, const Problem& problem, void* stream) {
  check_cpu(given, stream);
  const HostArguments with_lists(given);
  const rapt_sdpa_args& args = with_lists.get();
  const Plan chosen = plan(problem, cpu_device());
  check_workspace(args, chosen);
  check_contents(args, problem);
  const AttentionParams params = attention_params(args, problem);
  for (int i = 0; i < chosen.step_count; ++i) {
    const Step& step = chosen.steps[static_cast<size_t>(i)];
    step.family->run({step.config, problem, params}, context.cpu(), args.workspace);
  }
}

// Returns the workspace of the caller, or that of the stream if the caller gave none.
Workspaces::Lease workspace_for(GpuResources& gpu, const rapt_sdpa_args& args, const Problem& problem, const Plan& plan,
                                void* stream) {
  if (plan.workspace_bytes == 0) return {};
  if (args.workspace == nullptr) return gpu.workspaces().lease(problem, plan, args.q->device.index, stream);
  return Workspaces::Lease({args.workspace, static_cast<std::byte*>(args.workspace) + plan.workspace_zero_bytes});
}

void launch_steps(GpuResources& gpu, const rapt_sdpa_args& args, const Problem& problem, const LoadedPlan& loaded,
                  void* stream) {
  const AttentionParams params = attention_params(args, problem);
  const Workspaces::Lease lease = workspace_for(gpu, args, problem, loaded.plan, stream);
  for (size_t i = 0; i < static_cast<size_t>(loaded.plan.step_count); ++i) {
    const Step& step = loaded.plan.steps[i];
    launch(*loaded.kernels[i], step.family->launch_spec({step.config, problem, params, lease.workspace()}), stream);
  }
}

// If a recent call of this thread has a plan for this call (recent_calls.h), launches it and returns true.
bool repeat_recent_call(Context& context, const rapt_sdpa_args& args, void* stream) {
  const RecentCall* const known = RecentCalls::of_this_thread().find(context.gpu().id(), args);
  if (known == nullptr) return false;
  const cuda::ContextScope scope(args.q->device.index, stream);
  launch_steps(context.gpu(), args, known->problem(), known->plan(), stream);
  return true;
}

void sdpa_on_gpu(Context& context, const rapt_sdpa_args& args, const Problem& problem, void* stream) {
  const int index = args.q->device.index;
  const cuda::ContextScope scope(index, stream);
  const auto loaded = ready_plan(context.gpu(), problem, index, stream);
  check_workspace(args, loaded->plan);
  if ((args.flags & RAPT_CHECK_CONTENTS) != 0) check_device_contents(args, problem, stream);
  launch_steps(context.gpu(), args, problem, *loaded, stream);
  if (RecentCall::can_remember(args)) RecentCalls::of_this_thread().add({context.gpu().id(), args, problem, loaded});
}

// Returns the device to plan for. For a GPU this reads only its properties.
Device device_of(Context& context, const rapt_sdpa_args& args) {
  if (on_gpu(args)) return context.gpu().device(args.q->device.index);
  check_cpu(args, nullptr);
  return cpu_device();
}

}  // namespace

void sdpa(Context& context, const rapt_sdpa_args& args, void* stream) {
  const bool known_struct = args.struct_size == sizeof args && args.q != nullptr;
  if (known_struct && args.q->device.type == RAPT_DEVICE_CUDA && repeat_recent_call(context, args, stream)) return;
  const cpu::DefaultArithmetic scope;
  const Problem problem = problem_from(args);
  on_gpu(args) ? sdpa_on_gpu(context, args, problem, stream) : sdpa_on_cpu(context, args, problem, stream);
}

void prepare(Context& context, const rapt_sdpa_args& args, void* stream) {
  const Problem problem = problem_from(args);
  if (on_gpu(args)) {
    const int index = args.q->device.index;
    const cuda::ContextScope scope(index, stream);
    const auto loaded = ready_plan(context.gpu(), problem, index, stream);
    check_workspace(args, loaded->plan);
    workspace_for(context.gpu(), args, problem, loaded->plan, stream);
    return;
  }
  check_cpu(args, stream);
  const Plan chosen = plan(problem, cpu_device());
  check_workspace(args, chosen);
  CpuResources& cpu = context.cpu();
  const std::lock_guard<std::mutex> lock(cpu.call_mutex);
  if (args.workspace == nullptr) cpu.workspace.reserve(chosen.workspace_bytes);
}

size_t workspace_size(Context& context, const rapt_sdpa_args& args, size_t& zero_bytes) {
  const Problem problem = problem_from(args);
  const Device device = device_of(context, args);
  const Plan chosen = on_gpu(args) ? context.gpu().plan(problem, device) : plan(problem, device);
  zero_bytes = chosen.workspace_zero_bytes;
  return chosen.workspace_bytes;
}

std::string explain(Context& context, const rapt_sdpa_args& args) {
  const Problem problem = problem_from(args);
  if (!on_gpu(args)) return explain(problem, device_of(context, args));
  return explain(problem, device_of(context, args), context.gpu().tuned_rows());
}

}  // namespace rapt
