// The part of bench that differs between CPU and GPU: the rows of one problem, and the peak measured in the same run.
// Implemented by bench_cpu.cpp and bench_gpu.cpp, used by bench.cpp.
#pragma once

#include <functional>
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
    Error error;  // unsupported: no kernel computes the problem; internal: the result was wrong
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

// The samples of all implementations of one problem, from one attempt.
struct Attempt {
  std::vector<Samples> samples;  // one entry for each implementation
  GpuClocks clocks_before, clocks_after;
  int attempts = 1;  // the number of attempts that steadiest() made; this one had the smallest spread
  double largest_spread() const;
};
// If the spread is larger than this, steadiest() measures again. It makes at most `most_attempts` attempts.
inline constexpr double most_spread = 0.03;
inline constexpr int most_attempts = 3;
// Repeats take() while the spread is too large and `seconds` have not passed. Returns the attempt with the smallest
// spread, so the times of one row are never a mixture of attempts.
Attempt steadiest(const std::function<Attempt()>& take, double seconds);
// The number of samples that fit into one attempt's share of the budget. At most `iterations`, at least fewest_samples.
int64_t samples_within(double budget_seconds, double sample_us, int64_t iterations);

// Writes the plan's family and its other lines into the row.
void describe_plan(const Plan& plan, BenchRow& row);
// Writes the errors of a call's outputs into the row. If they exceed their bounds, throws Error{internal} with the
// command that repeats the check: a wrong kernel is never timed. `fill` is the fill of the inputs. If `fill` is not
// Fill::normal and the oracle's values overflow f32, throws Error{unsupported}.
void judge_call(const Problem& problem, const check::Inputs& inputs, const check::Outputs& outputs, uint64_t seed,
                const std::string& rerun, BenchRow& row, check::Fill fill = check::Fill::normal);

}  // namespace rapt::lab
