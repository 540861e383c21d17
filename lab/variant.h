// Compiles kernels with --config and --variant and reports their resources, if no GPU can run them. Called by explain,
// check and pack; needs NVRTC.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lab/commands.h"
#include "lab/kernels.h"

namespace rapt::lab {

// Throws Error{environment} if there is no NVRTC. who: the command, for the error sentence.
void require_compiler(const std::string& who);

// --variant's source and one --config value, in the form that select_kernels takes.
KernelOverrides overrides_of(const Common& options, const std::string& config = "");

// Throws Error if no kernel of the problems includes the source that --variant replaces, because then the result would
// not depend on the variant.
void require_variant_included(const std::vector<Problem>& problems, const Device& device, const Common& options);

struct CompiledKernels {
  KernelSelection selection;
  std::vector<jit::Image> images;  // one for each of selection.kernels
};
// The compiled kernels of problems for a device. who: the command, for error sentences.
CompiledKernels compile_for(const std::vector<Problem>& problems, const Device& device, const Common& options,
                            const std::string& config, const std::string& who);

// Prints a line for each kernel and for each skipped problem.
void print_compiled(const CompiledKernels& compiled);
nlohmann::ordered_json to_json(const CompiledKernels& compiled);
// The number of instructions of each kind in one image; null for PTX.
nlohmann::ordered_json instructions_json(const jit::Image& image);

}  // namespace rapt::lab
