// What bench needs of the CPU and of GPUs: rows for one problem, measured beside the roof of the same run.
// Implemented by bench_cpu.cpp and bench_gpu.cpp, used by bench.cpp.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "check/check.h"
#include "lab/commands.h"
#include "lab/report.h"
#include "runtime/plan.h"

namespace rapt::lab {

// What one problem gave: a row for each arm that could be timed, and why the others could not.
struct Measured {
  std::vector<BenchRow> rows;
  struct Fault {
    std::string arm;
    Error error;  // unsupported: no kernel takes it; internal: the result was wrong
  };
  std::vector<Fault> faults;
};

class Bench {
 public:
  virtual ~Bench() = default;
  virtual std::string headline() const = 0;  // the machine, and its roof as measured now
  virtual std::string card() const = 0;      // fit for a folder
  virtual Measured measure(const Problem& problem) = 0;
};
std::unique_ptr<Bench> cpu_bench(const BenchOptions& options, const Device& device);
std::unique_ptr<Bench> gpu_bench(const BenchOptions& options, const Device& device);

// The plan's family, and the rest of its lines.
void describe_plan(const Plan& plan, BenchRow& row);
// Puts the errors of a call's outputs into the row. Throws Error{internal}, with the command that repeats it, where
// they are outside their bounds: a wrong kernel is never timed.
void judge_call(const Problem& problem, const check::Inputs& inputs, const check::Outputs& outputs, uint64_t seed,
                const std::string& rerun, BenchRow& row);

}  // namespace rapt::lab
