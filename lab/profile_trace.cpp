// rapt profile --trace: measures the time of each role and stage with time stamps. It needs no Nsight Compute and no
// permission. It compiles the kernel of the problem once more, with marks (kernels/device/trace.cuh). Then it launches
// this kernel, checks the result, and launches the kernel again. The second launch gives the trace. Called by
// profile.cpp.
#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "arguments/arguments.h"
#include "base/error.h"
#include "check/device_tensors.h"
#include "lab/bench.h"
#include "lab/file.h"
#include "lab/gpu_timer.h"
#include "lab/kernel_limit.h"
#include "lab/machine.h"
#include "lab/profile.h"
#include "lab/trace.h"
#include "lab/variant.h"
#include "operations/bind.h"
#include "runtime/context.h"
#include "runtime/gpu.h"

namespace rapt::lab {
namespace {

// A context whose kernels are compiled with or without marks.
ContextHandle context_for(const Common& common, const Device& device, const Problem& problem, const std::string& config,
                          bool marks) {
  ContextOptions options;
  options.arch = common.arch;
  options.sm_count = common.sm_count;
  options.config = config;
  options.files = variant_files(common, device, problem);
  if (marks) options.files = with_trace(std::move(options.files));
  return ContextHandle(new rapt_context(std::move(options)));
}

// The buffers of one launch's marks on the GPU.
class TraceBuffers {
 public:
  explicit TraceBuffers(const TraceShape& shape)
      : shape_(shape),
        marks_(shape.marks() * sizeof(unsigned long long)),
        of_warps_(shape.all_warps() * sizeof(TraceWarp)),
        lost_(sizeof(unsigned)) {
    clear();
  }

  void clear() {
    for (cuda::Buffer* buffer : {&marks_, &of_warps_, &lost_}) buffer->fill(0);
  }
  TraceBuffer view() const {
    return {static_cast<unsigned long long*>(marks_.data()),
            static_cast<TraceWarp*>(of_warps_.data()),
            static_cast<unsigned*>(lost_.data()),
            shape_.ctas,
            shape_.warps,
            shape_.steps,
            shape_.stages};
  }
  TraceMemory download() const {
    TraceMemory memory{shape_, std::vector<unsigned long long>(shape_.marks()),
                       std::vector<TraceWarp>(shape_.all_warps()), 0};
    marks_.download(memory.marks.data(), marks_.bytes());
    of_warps_.download(memory.of_warps.data(), of_warps_.bytes());
    lost_.download(&memory.lost, sizeof memory.lost);
    return memory;
  }

 private:
  const TraceShape shape_;
  cuda::Buffer marks_, of_warps_, lost_;
};

struct TracedRun {
  Trace trace;
  double us = 0, us_with_marks = 0;
  int registers = 0, registers_with_marks = 0;
};

class Tracer {
 public:
  Tracer(const ProfileOptions& options, const Problem& problem, const Device& device, std::string config)
      : options_(options),
        problem_(problem),
        device_(device),
        config_(std::move(config)),
        scope_(device.index, nullptr),
        plain_(context_for(options.common, device, problem, config_, false)),
        marked_(context_for(options.common, device, problem, config_, true)),
        inputs_(check::make_inputs(problem, check::Fill::normal, options.seed)),
        outputs_(check::make_outputs(problem)),
        call_(device.index, problem, inputs_, outputs_) {}

  TracedRun run(const Step& step, std::vector<std::string> names) {
    TracedRun result;
    const LoadedKernel& kernel = loaded(*marked_);
    const AttentionParams params = attention_params(call_.args(), problem_);
    const LaunchSpec spec = step.family->launch_spec({step.config, problem_, params});
    if (spec.empty()) unsupported("--trace: ", to_string(problem_), ": nothing is launched");
    TraceBuffers buffers(trace_shape(problem_, step.config, spec, kernel.unit.threads, names.size()));
    const TraceBuffer view = buffers.view();
    kernel.kernel->write_global(trace_variable, &view, sizeof view);
    launch(*marked_);
    require_right();
    buffers.clear();
    launch(*marked_);
    result.trace = read_trace(std::move(names), buffers.download());
    result.us_with_marks = microseconds(*marked_);
    result.us = microseconds(*plain_);
    result.registers_with_marks = kernel.kernel->attributes(device_.index).registers;
    result.registers = loaded(*plain_).kernel->attributes(device_.index).registers;
    return result;
  }

 private:
  const LoadedKernel& loaded(rapt_context& context) {
    require_ok(rapt_prepare(&context, &call_.args(), stream_.handle()));
    return *context.impl.gpu().find(problem_from(call_.args()), device_.index)->kernels[0];
  }
  void launch(rapt_context& context) {
    const KernelLimit limit(to_string(problem_), options_.common.command);
    require_ok(rapt_sdpa(&context, &call_.args(), stream_.handle()));
    stream_.synchronize();
  }
  double microseconds(rapt_context& context) {
    return rough_call_us(stream_, [&](int64_t) { require_ok(rapt_sdpa(&context, &call_.args(), stream_.handle())); });
  }
  void require_right() {
    call_.require_untouched();
    call_.download();
    BenchRow row;
    try {
      judge_call(problem_, inputs_, outputs_, options_.seed, rerun_options(options_.common, device_, config_), row);
    } catch (const Error& error) {
      throw Error(error.code(), concat("profile: the kernel is wrong and was not profiled: ", error.what()));
    }
  }

  const ProfileOptions& options_;
  const Problem& problem_;
  const Device device_;
  const std::string config_;
  cuda::ContextScope scope_;
  cuda::Stream stream_;
  ContextHandle plain_, marked_;
  check::Inputs inputs_;
  check::Outputs outputs_;
  check::DeviceCall call_;
};

std::string write_trace(const std::string& path, const Trace& trace, const std::string& title) {
  make_directories(std::filesystem::path(path).parent_path().string());
  AtomicFile file(path);
  file.write(chrome_trace(trace, title).dump());
  file.commit();
  return path;
}

}  // namespace

int profile_by_trace(const ProfileOptions& options, const Problem& problem, const Device& device,
                     const std::string& config, const std::string& path, const std::string& why) {
  const Plan chosen = plan_with(problem, device, config, options.common.variant.empty());
  if (chosen.step_count == 0) unsupported("--trace: ", to_string(problem), ": nothing is launched");
  const Step& step = chosen.steps[0];
  const jit::Request request = request_for(step.family->unit(step.config), device.arch, step.family->name,
                                           with_trace(variant_files(options.common, device, problem)));
  std::vector<std::string> names = trace_stages(request);
  require_compiler("profile --trace");
  Tracer tracer(options, problem, device, config);
  const TracedRun run = tracer.run(step, std::move(names));
  const TraceSummary summary = summarise(run.trace);
  const std::string kernel = concat(step.family->name, " ", step.config.words_unlike(KernelConfig(step.config.type())));
  const std::string title =
      concat(title_of(device), ", ", device.arch, sm_count_note(options.common), "; ", to_string(problem));
  const std::string written = write_trace(path, run.trace, concat(title, "; ", kernel));
  if (options.common.json) {
    nlohmann::ordered_json json = {{"problem", to_string(problem)},
                                   {"card", device.name},
                                   {"arch", device.arch},
                                   {"sm_count", device.sm_count},
                                   {"kernel", kernel},
                                   {"us", run.us},
                                   {"us_with_marks", run.us_with_marks},
                                   {"registers", run.registers},
                                   {"registers_with_marks", run.registers_with_marks}};
    json.update(to_json(run.trace, summary));
    json["why"] = why, json["written"] = written;
    fmt::print("{}\n", json.dump(2));
    return exit_success;
  }
  fmt::print("trace    {}\n", title);
  if (!why.empty()) fmt::print("why      {}\n", why);
  fmt::print("kernel   {}\n", kernel);
  fmt::print("time     {:.2f} us; with marks {:.2f} us ({:+.0f}%); {} registers, with marks {}\n", run.us,
             run.us_with_marks, 100 * (run.us_with_marks / run.us - 1), run.registers, run.registers_with_marks);
  fmt::print("{}wrote    {} (open it in ui.perfetto.dev)\n", to_text(run.trace, summary), written);
  return exit_success;
}

}  // namespace rapt::lab
