// The GPU kernels that problem lines need. They are found by planning for device presets, and compiled in parallel.
// Also computes their occupancy. Used by pack.cpp, ledger.cpp and tests. Compiling needs NVRTC, but no GPU.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "device/device.h"
#include "jit/jit.h"
#include "kernels/family.h"
#include "lab/cubin.h"
#include "problem/problem.h"

namespace rapt::lab {

// A kernel that the plan of some problem launches on some architecture, or that merges its partial states.
struct PlannedKernel {
  Device device;
  std::string family, config;  // config: the words that differ from the defaults
  std::string problem;         // the first problem line that needs it
  KernelUnit unit;
  jit::Request request;  // the same request that the library makes at run time
  std::string signature;
};

struct KernelSelection {
  std::vector<PlannedKernel> kernels;  // one for each signature, ordered by device, then by problem
  struct Skipped {
    std::string problem, arch, why;
  };
  std::vector<Skipped> skipped;
};

// Overrides of the planner's choice and of the library's sources.
struct KernelOverrides {
  // Words of --config.
  std::string config;
  // The sources to replace, by name. The function may be empty.
  std::function<std::map<std::string, std::string>(const Problem& problem, const Device& device)> files;
};

// Plans every problem for every device. Skips problems that no family takes or that launch nothing.
KernelSelection select_kernels(const std::vector<Problem>& problems, const std::vector<Device>& devices,
                               const KernelOverrides& overrides = {});

// The resources that a kernel needs.
struct KernelNeeds {
  int registers = 0;  // per thread
  int threads = 0;    // per block
  int barriers = 0;
  int64_t shared_bytes = 0;  // static and dynamic
};
struct Occupancy {
  int blocks = 0;    // resident blocks per multiprocessor; 0: the kernel cannot be launched
  double share = 0;  // share of the multiprocessor's threads that these blocks use
};
Occupancy occupancy(const Device& device, const KernelNeeds& needs);

// The resources of an image on its architecture, from the compiler's log.
struct KernelReport {
  jit::Resources resources;  // for PTX, resources.known is false
  Occupancy occupancy;       // on the device for which the kernel was planned
};
KernelReport report_of(const PlannedKernel& kernel, const jit::Image& image);
// "sm_89 attention_sm80 ...: 128 threads, 168 registers, ...".
std::string to_string(const PlannedKernel& kernel, const jit::Image& image);
// The number of instructions in an image's code, by kind. No value for PTX, because only the driver compiles PTX.
std::optional<InstructionCounts> instructions_of(const jit::Image& image);
// "2048 instructions: HMMA 256, QMMA 0, ...". For PTX, a text that says that the instructions are unknown.
std::string instruction_line(const jit::Image& image);

// The GPU presets in a list such as "sm_80,sm_89,h100" (architectures or GPU names). Throws Error for all other words.
std::vector<Device> gpu_presets(const std::string& list);

// Compiles the kernels. Returns the images in the order of `kernels`. Throws the compiler's first error.
std::vector<jit::Image> compile_kernels(const std::vector<PlannedKernel>& kernels, int threads);

}  // namespace rapt::lab
