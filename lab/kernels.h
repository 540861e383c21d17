// The GPU kernels that problem lines need: selected by planning for presets, compiled in parallel, with their
// occupancy. Used by pack.cpp, ledger.cpp and tests. Compiling needs NVRTC, but no GPU.
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
  jit::Request request;  // the same request as the library makes at run time
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
  // Config words.
  std::string config;
  std::function<std::map<std::string, std::string>(const Problem& problem, const Device& device)> files;  // or empty
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
  int blocks = 0;    // resident blocks per multiprocessor; 0: it cannot be launched
  double share = 0;  // fraction of the multiprocessor's threads
};
Occupancy occupancy(const Device& device, const KernelNeeds& needs);

// The resources of an image on its architecture, from the compiler's log.
struct KernelReport {
  jit::Resources resources;  // known: false for PTX
  Occupancy occupancy;       // on the device that it was planned for
};
KernelReport report_of(const PlannedKernel& kernel, const jit::Image& image);
// "sm_89 attention_sm80 ...: 128 threads, 168 registers, ...".
std::string to_string(const PlannedKernel& kernel, const jit::Image& image);
// The instructions of an image's code, by kind; none for PTX, which only the driver compiles.
std::optional<InstructionCounts> instructions_of(const jit::Image& image);
// "2048 instructions: HMMA 256, QMMA 0, ..."; for PTX, that they are unknown.
std::string instruction_line(const jit::Image& image);

// "sm_80,sm_89,h100": presets of GPUs, by architecture or GPU name. Throws Error for all other words.
std::vector<Device> gpu_presets(const std::string& list);

// The images in the order of `kernels`. Throws the first error of the compiler.
std::vector<jit::Image> compile_kernels(const std::vector<PlannedKernel>& kernels, int threads);

}  // namespace rapt::lab
