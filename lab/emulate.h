// GPU kernels run on this CPU, where no GPU is: a kernel's translation unit and the texts that it includes are compiled
// by this machine's C++ compiler together with lab/emulation, loaded, and run as a check::Kernel.
// Called by check.cpp. What it shows: indexing, synchronisation, arithmetic; what it cannot: speed, the rounding of a
// card's matrix instructions, races that taking turns hides.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "check/check.h"
#include "device/device.h"
#include "lab/commands.h"

namespace rapt::lab {

// A problem, and words of --config over the planner's choice for it.
struct EmulatedProblem {
  Problem problem;
  std::string config;
};

// Operations in whole tiles (multiply-adds of both products) above which a problem takes too long.
inline constexpr double most_emulated = 2e8;

// What is run for a problem: itself, or where it is too large shorter ones of its kind with the configuration that the
// planner chose for it. None where it cannot be shortened. Throws Error{unsupported} where no kernel takes it.
struct EmulatedProblems {
  bool too_large = false;
  std::vector<EmulatedProblem> run;
};
EmulatedProblems emulated_problems(const EmulatedProblem& asked, const Device& device, bool own_text);

class Emulator {
 public:
  // --variant's text is taken from the options. Throws Error{environment} where no C++ compiler is found.
  Emulator(const Common& options, const Device& device);
  ~Emulator();

  // Compiles the kernels of all problems, several at a time. Problems that no kernel takes are left out. Throws
  // Error{environment} with the first lines of the compiler where it does not compile one.
  void compile(const std::vector<EmulatedProblem>& problems);

  // Runs in a process of its own, so that a kernel that crashes or never ends is a sentence. Needs its kernel compiled,
  // or compiles it. It must not outlive the emulator.
  check::Kernel kernel(const std::string& config);

  const std::string& compiler() const { return compiler_; }

 private:
  struct Unit;
  struct Library;
  Unit unit_of(const EmulatedProblem& problem) const;
  void run(const EmulatedProblem& problem, const check::Inputs& inputs, const check::Outputs& outputs);

  const Common& options_;
  const Device device_;
  std::string compiler_;
  std::map<std::string, std::unique_ptr<Library>> libraries_;  // by the unit's text
};

}  // namespace rapt::lab
