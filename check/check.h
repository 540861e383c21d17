// check_problem: creates inputs, runs a kernel and the oracle, compares them, for one problem line, fill and seed.
// Called by tests and lab. The tested kernel is the library (library.cpp) or any other function.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bounds.h"
#include "compare.h"
#include "fill.h"

namespace rapt::check {

// Computes out, and lse if it is present. Throws Error if it refuses the problem.
struct Kernel : std::function<void(const Problem&, const Inputs&, const Outputs&)> {
  using function::function;
  // The format to which pv=f16 and the default may round the weights of an FP8 V. GPU matrix instructions take f16.
  DType fp8_weights = DType::f16;
};

// rapt_sdpa on the CPU, or on a GPU with its own stream. It uploads the inputs, and checks afterwards that they and the
// memory around all tensors are unchanged. context may be NULL. Needs the library at link time.
Kernel library_kernel(rapt_context* context = nullptr, rapt_device device = {RAPT_DEVICE_CPU, 0});

struct Result {
  bool pass = false;
  bool refused = false;  // the kernel threw Error{unsupported}, or f32 overflows (range.h); message has the reason
  int64_t samples = 0;   // seeds seed, seed + 1, ... pooled: at least 4096 outputs
  Errors out, lse, plain;
  Bounds bounds;
  double lse_share = 0;   // worst lse error relative to its bound
  int64_t lse_worst = 0;  // row of that error
  std::string message;    // empty if it passed
  std::string command;    // command that repeats the check
};

Result check_problem(const Problem& problem, Fill fill, uint64_t seed, const Kernel& kernel);
// Checks several kernels on the same inputs with one reference, because the reference takes longest. One result for
// each. Their fp8_weights must be equal.
std::vector<Result> check_problem(const Problem& problem, Fill fill, uint64_t seed, const std::vector<Kernel>& kernels);

// One sample is enough if the outputs have at least this many elements.
inline constexpr int64_t pooled_outputs = 4096;

// Judges the outputs of one call (from make_outputs), and lse if present, on every row_step-th query of each head. For
// inputs from elsewhere (no fill) or problems too large for the whole oracle. With fewer than pooled_outputs elements
// only max_abs counts. fp8_weights: see Kernel.
Result judge(const Problem& problem, std::optional<Fill> fill, const Inputs& inputs, const Outputs& outputs,
             int64_t row_step = 1, DType fp8_weights = DType::f16);

std::string rerun_command(const Problem& problem, Fill fill, uint64_t seed);

}  // namespace rapt::check
