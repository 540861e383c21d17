// Kernels with --config and --variant compiled and reported where no GPU can run them.
// Called by explain, check and pack; needs NVRTC.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lab/commands.h"
#include "lab/kernels.h"

namespace rapt::lab {

// Throws Error{environment} without NVRTC.
void require_compiler(const std::string& who);

// --variant's text, and one of --config's values, in the form that select_kernels takes.
KernelOverrides overrides_of(const Common& options, const std::string& config = "");

// Throws Error where no kernel of the problems includes the text that --variant replaces: its result would say nothing
// of the variant.
void require_variant_included(const std::vector<Problem>& problems, const Device& device, const Common& options);

struct CompiledKernels {
  KernelSelection selection;
  std::vector<jit::Image> images;  // of selection.kernels
};
// The kernels of problems for a device, compiled. who: the command, for sentences.
CompiledKernels compile_for(const std::vector<Problem>& problems, const Device& device, const Common& options,
                            const std::string& config, const std::string& who);

// A line for each kernel, and for what was skipped.
void print_compiled(const CompiledKernels& compiled);
nlohmann::ordered_json to_json(const CompiledKernels& compiled);

}  // namespace rapt::lab
