// The GPU kernels that problem lines need: chosen by planning for presets, compiled in parallel, and what they occupy.
// Used by pack.cpp, ledger.cpp and tests; needs NVRTC to compile and never a GPU.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "device/device.h"
#include "jit/jit.h"
#include "kernels/family.h"
#include "problem/problem.h"

namespace rapt::lab {

// A kernel that some problem's plan launches on some architecture, or that merges the partial states it leaves.
struct PlannedKernel {
  Device device;
  std::string family, config;  // config: the words that differ from AttentionConfig's defaults
  std::string problem;         // the first line that needs it
  KernelUnit unit;
  jit::Request request;  // as the library asks for it at run time
  std::string signature;
};

struct KernelSelection {
  std::vector<PlannedKernel> kernels;  // one for each signature: by device, then in the order of the problems
  struct Skipped {
    std::string problem, arch, why;
  };
  std::vector<Skipped> skipped;
};

// What stands over the planner's choice and the library's texts.
struct KernelOverrides {
  std::string config;                                                                                     // words
  std::function<std::map<std::string, std::string>(const Problem& problem, const Device& device)> files;  // or empty
};

// Plans every problem for every device. Problems that no family takes, or that launch nothing, are skipped.
KernelSelection select_kernels(const std::vector<Problem>& problems, const std::vector<Device>& devices,
                               const KernelOverrides& overrides = {});

// What a kernel asks of a multiprocessor.
struct KernelNeeds {
  int registers = 0;  // of a thread
  int threads = 0;    // of a block
  int barriers = 0;
  int64_t shared_bytes = 0;  // static and dynamic
};
struct Occupancy {
  int blocks = 0;    // that fit on a multiprocessor at once; 0 = it cannot be launched
  double share = 0;  // of the multiprocessor's threads
};
Occupancy occupancy(const Device& device, const KernelNeeds& needs);

// What an image takes of its architecture, by the compiler's log.
struct KernelReport {
  jit::Resources resources;  // known: false for PTX
  Occupancy occupancy;       // of the device that was planned for
};
KernelReport report_of(const PlannedKernel& kernel, const jit::Image& image);
// "sm_89 attention_sm80 ...: 128 threads, 168 registers, ...".
std::string to_string(const PlannedKernel& kernel, const jit::Image& image);

// "sm_80,sm_89,h100": presets of GPUs, by architecture or card. Throws Error for anything else.
std::vector<Device> gpu_presets(const std::string& list);

// Images in the order of `kernels`. Throws what the compiler throws first.
std::vector<jit::Image> compile_kernels(const std::vector<PlannedKernel>& kernels, int threads);

}  // namespace rapt::lab
