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

// The largest allowed number of multiply-adds in both products, counted in whole tiles. A larger problem takes too
// long.
inline constexpr double max_emulated_operations = 2e8;

// The problems to run in place of a given problem. This is the problem itself if it is small enough. Otherwise these
// are smaller problems of the same kind, with the configuration that the planner chose for the given problem. Empty if
// the given problem cannot be made smaller. Throws Error{unsupported} if no kernel computes the given problem.
struct EmulatedProblems {
  bool too_large = false;
  std::vector<EmulatedProblem> run;
};
EmulatedProblems emulated_problems(const EmulatedProblem& asked, const Device& device, bool own_text);

// The files of a request. Files that wrap single PTX instructions are replaced by their stand-ins (lab/emulation/ptx).
std::map<std::string, std::string> with_stand_ins(std::map<std::string, std::string> files);
// Compiles a request's translation unit for this CPU. Its files must come from with_stand_ins(). Returns the path of
// the library in the folder. more: source text that is added after the unit. Throws Error{environment} with the first
// lines of the compiler's output if the unit does not compile.
std::string build_for_cpu(const jit::Request& request, const HostCompiler& compiler, const TemporaryFolder& folder,
                          const std::string& name, const std::string& more = "");

class Emulator {
 public:
  // The options give the --variant source. Throws Error{environment} if no C++ compiler is found.
  Emulator(const Common& options, const Device& device);
  ~Emulator();

  // Compiles the kernels of all problems, several at a time. Skips problems that no kernel takes. Throws
  // Error{environment} with the first lines of the compiler's output if a kernel does not compile.
  void compile(const std::vector<EmulatedProblem>& problems);

  // Returns a check::Kernel that runs the emulated kernel in a child process, so a crash or an endless loop becomes an
  // error. It compiles the kernel if compile() has not done so. It must not outlive the emulator.
  check::Kernel kernel(const std::string& config);

  const std::string& compiler() const { return compiler_; }

  // After this call kernels are compiled with marks (device/trace.cuh). Each run replaces the contents of `into`, which
  // must outlive the emulator. The emulated clock counts marks instead of cycles.
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
