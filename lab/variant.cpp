// Compiles and reports variants; it does not run them.
#include "lab/variant.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cpu/threads.h"
#include "jit/sources.h"
#include "runtime/gpu.h"
#include "runtime/plan.h"

namespace rapt::lab {

void require_compiler(const std::string& who) {
  std::string why;
  if (jit::find_compiler(&why) == nullptr)
    throw Error(ErrorCode::environment, concat(who, " needs NVRTC to compile kernels: ", why));
}

KernelOverrides overrides_of(const Common& options, const std::string& config) {
  KernelOverrides overrides{config, {}};
  if (!options.variant.empty())
    overrides.files = [&options](const Problem& problem, const Device& device) {
      return variant_files(options, device, problem);
    };
  return overrides;
}

void require_variant_included(const std::vector<Problem>& problems, const Device& device, const Common& options) {
  if (options.variant.empty() || device.kind != DeviceKind::cuda) return;
  std::string replaced;
  const std::string config = options.configs.empty() ? "" : options.configs[0];
  for (const Problem& problem : problems) {
    const auto files = variant_files(options, device, problem);
    try {
      const Plan chosen = plan_with(problem, device, config, false);
      for (int i = 0; i < chosen.step_count; ++i) {
        const Step& step = chosen.steps[static_cast<size_t>(i)];
        const jit::Request request = request_for(step.family->unit(step.config), device.arch, step.family->name, files);
        replaced = files.begin()->first;
        if (jit::collect_sources(request).headers.contains(replaced)) return;
      }
    } catch (const Error& error) {
      // The source itself is wrong: the compiler's error is more useful.
      if (error.code() != ErrorCode::unsupported) return;
    }
  }
  if (!replaced.empty())
    invalid("--variant ", options.variant, ": it replaces ", replaced, ", which no kernel of ",
            problems.size() == 1 ? "this problem" : "these problems", " includes");
}

CompiledKernels compile_for(const std::vector<Problem>& problems, const Device& device, const Common& options,
                            const std::string& config, const std::string& who) {
  CompiledKernels compiled;
  compiled.selection = select_kernels(problems, {device}, overrides_of(options, config));
  require_compiler(who);
  compiled.images = compile_kernels(compiled.selection.kernels, cpu::available_threads());
  return compiled;
}

void print_compiled(const CompiledKernels& compiled) {
  for (size_t i = 0; i < compiled.images.size(); ++i) {
    const PlannedKernel& kernel = compiled.selection.kernels[i];
    const jit::Image& image = compiled.images[i];
    fmt::print("compiled {}; by NVRTC {} in {:.1f} s, for {}\n", to_string(kernel, image), image.compiler,
               image.milliseconds / 1000, kernel.problem);
    fmt::print("sass     {}\n", instruction_line(image));
    for (const std::string& warning : report_of(kernel, image).resources.warnings) fmt::print("         {}\n", warning);
  }
  for (const KernelSelection::Skipped& one : compiled.selection.skipped)
    fmt::print("skipped  {} on {}: {}\n", one.problem, one.arch, one.why);
}

nlohmann::ordered_json instructions_json(const jit::Image& image) {
  const std::optional<InstructionCounts> n = instructions_of(image);
  if (!n) return nullptr;
  return {{"total", n->total},   {"hmma", n->hmma},     {"qmma", n->qmma},   {"ldsm", n->ldsm},    {"ffma", n->ffma},
          {"mufu", n->mufu},     {"ldgsts", n->ldgsts}, {"ldg", n->ldg},     {"lds", n->lds},      {"sts", n->sts},
          {"ldg_16", n->ldg_16}, {"lds_16", n->lds_16}, {"local", n->local}, {"sts_16", n->sts_16}};
}

nlohmann::ordered_json to_json(const CompiledKernels& compiled) {
  auto rows = nlohmann::ordered_json::array();
  for (size_t i = 0; i < compiled.images.size(); ++i) {
    const PlannedKernel& kernel = compiled.selection.kernels[i];
    const jit::Image& image = compiled.images[i];
    const auto [r, fits] = report_of(kernel, image);
    const auto known = [&known_ = r.known](auto value) {
      return known_ ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
    };
    rows.push_back({{"problem", kernel.problem},
                    {"arch", image.arch},
                    {"family", kernel.family},
                    {"config", kernel.config},
                    {"signature", kernel.signature},
                    {"compiler", image.compiler},
                    {"compile_ms", image.milliseconds},
                    {"threads", kernel.unit.threads},
                    {"registers", known(r.registers)},
                    {"spill_bytes", known(r.spill_store_bytes + r.spill_load_bytes)},
                    {"stack_bytes", known(r.stack_bytes)},
                    {"shared_bytes", known(r.shared_bytes + static_cast<int64_t>(kernel.unit.smem_bytes))},
                    {"blocks_per_sm", known(fits.blocks)},
                    {"occupancy", known(fits.share)},
                    {"instructions", instructions_json(image)},
                    {"warnings", r.warnings}});
  }
  return rows;
}

}  // namespace rapt::lab
