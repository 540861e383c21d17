// check_problem: inputs, kernel, oracle, comparison, verdict - for one problem line, fill and seed.
// Called by tests and lab; the kernel under test is the library (library.cpp) or any other function.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bounds.h"
#include "compare.h"
#include "fill.h"

namespace rapt::check {

// Computes out (and lse where it is present). Throws Error when it refuses.
struct Kernel : std::function<void(const Problem&, const Inputs&, const Outputs&)> {
  using function::function;
  // What the weights of an FP8 V may be rounded to by pv=f16 and the default: GPUs' matrix instructions take f16.
  DType fp8_weights = DType::f16;
};

// rapt_sdpa on the CPU, or on a GPU with a stream of its own: the inputs are uploaded, must come back unchanged, and
// nothing around any tensor may have been written. context may be NULL. Needs the library at link time.
Kernel library_kernel(rapt_context* context = nullptr, rapt_device device = {RAPT_DEVICE_CPU, 0});

struct Result {
  bool pass = false;
  bool refused = false;  // the kernel threw Error{unsupported}, or f32 cannot hold it (range.h): see message
  int64_t samples = 0;   // seeds seed, seed + 1, ... pooled: at least 4096 outputs
  Errors out, lse, plain;
  Bounds bounds;
  double lse_share = 0;   // worst lse error as a share of its bound
  int64_t lse_worst = 0;  // and its row
  std::string message;    // empty when it passed
  std::string command;    // reruns it
};

Result check_problem(const Problem& problem, Fill fill, uint64_t seed, const Kernel& kernel);
// Several kernels on the same inputs, judged by one reference, which takes longer than they do: a result for each.
// Their fp8_weights must be alike.
std::vector<Result> check_problem(const Problem& problem, Fill fill, uint64_t seed, const std::vector<Kernel>& kernels);

// Outputs of at least this many elements are judged on one sample.
inline constexpr int64_t pooled_outputs = 4096;

// Judges one call's outputs (of make_outputs), lse where it is present, on every row_step-th query of each head: for
// inputs that come from elsewhere (no fill) or problems too large for the whole oracle. With fewer than pooled_outputs
// elements max_abs alone judges. fp8_weights: see Kernel.
Result judge(const Problem& problem, std::optional<Fill> fill, const Inputs& inputs, const Outputs& outputs,
             int64_t row_step = 1, DType fp8_weights = DType::f16);

std::string rerun_command(const Problem& problem, Fill fill, uint64_t seed);

}  // namespace rapt::check
