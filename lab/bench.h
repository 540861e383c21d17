// The part of bench that differs between CPU and GPU: the rows of one problem, and the peak measured in the same run.
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

// The result of one problem: a row for each timed implementation, and why others were not timed.
struct Measured {
  std::vector<BenchRow> rows;
  struct Fault {
    std::string implementation;
    Error error;  // unsupported: no kernel takes it; internal: its result was wrong
  };
  std::vector<Fault> faults;
};

class Bench {
 public:
  virtual ~Bench() = default;
  virtual std::string headline() const = 0;  // the machine and its measured peak
  virtual std::string card() const = 0;      // usable as a folder name
  virtual Measured measure(const Problem& problem) = 0;
};
std::unique_ptr<Bench> cpu_bench(const BenchOptions& options, const Device& device);
std::unique_ptr<Bench> gpu_bench(const BenchOptions& options, const Device& device);

// Writes the plan's family and its other lines into the row.
void describe_plan(const Plan& plan, BenchRow& row);
// Writes the errors of a call's outputs into the row. Throws Error{internal} with the command that repeats the check if
// they exceed their bounds: a wrong kernel is never timed.
void judge_call(const Problem& problem, const check::Inputs& inputs, const check::Outputs& outputs, uint64_t seed,
                const std::string& rerun, BenchRow& row);

}  // namespace rapt::lab
