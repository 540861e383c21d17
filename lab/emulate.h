// Runs GPU kernels on the CPU without a GPU. This machine's C++ compiler compiles a kernel's translation unit with the
// sources that it includes and lab/emulation. The result is loaded and run as a check::Kernel. Called by check.cpp. The
// emulation tests indexing, synchronisation and arithmetic. It cannot show speed, how a GPU's matrix instructions
// round, or races that its order of threads hides.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "check/check.h"
#include "device/device.h"
#include "lab/commands.h"
#include "lab/host_compiler.h"
#include "lab/trace.h"

namespace rapt::lab {

// A problem, and --config words that override the planner's choice.
struct EmulatedProblem {
  Problem problem;
  std::string config;
};

// The limit of multiply-adds of both products, in whole tiles. Larger problems would take too long.
inline constexpr double max_emulated_operations = 2e8;

// The problems to run for a given problem: the problem itself, or if it is too large, smaller ones of the same kind
// with the configuration that the planner chose for it. Empty if it cannot be made smaller. Throws Error{unsupported}
// if no kernel takes it.
struct EmulatedProblems {
  bool too_large = false;
  std::vector<EmulatedProblem> run;
};
EmulatedProblems emulated_problems(const EmulatedProblem& asked, const Device& device, bool own_text);

// The files of a request, and stand-ins for those with single PTX instructions (lab/emulation/ptx).
std::map<std::string, std::string> with_stand_ins(std::map<std::string, std::string> files);
// Compiles a request's translation unit, whose files have stand-ins, for this CPU. Returns the path of its library in
// the folder. more: source text behind the unit. Throws Error{environment} with the compiler's first lines.
std::string build_for_cpu(const jit::Request& request, const HostCompiler& compiler, const TemporaryFolder& folder,
                          const std::string& name, const std::string& more = "");

class Emulator {
 public:
  // The options give the --variant source. Throws Error{environment} if no C++ compiler is found.
  Emulator(const Common& options, const Device& device);
  ~Emulator();

  // Compiles the kernels of all problems, several at a time. Skips problems that no kernel takes. Throws
  // Error{environment} with the compiler's first lines if a kernel does not compile.
  void compile(const std::vector<EmulatedProblem>& problems);

  // A kernel that runs in a child process, so a crash or an endless loop becomes an error. It compiles its kernel if
  // needed. It must not outlive the emulator.
  check::Kernel kernel(const std::string& config);

  const std::string& compiler() const { return compiler_; }

  // From now on kernels are compiled with marks (device/trace.cuh). Each run replaces the contents of `into`, which
  // must outlive the emulator. Cycles are counts of marks.
  void trace(TraceMemory& into) { trace_ = &into; }

 private:
  struct Unit;
  struct Library;
  Unit unit_of(const EmulatedProblem& problem) const;
  void run(const EmulatedProblem& problem, const check::Inputs& inputs, const check::Outputs& outputs);

  const Common& options_;
  const Device device_;
  std::string compiler_;
  TraceMemory* trace_ = nullptr;
  std::map<std::string, std::unique_ptr<Library>> libraries_;  // key: the translation unit's source
};

}  // namespace rapt::lab
