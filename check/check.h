// check_problem: creates inputs for one problem line, fill and seed, runs a kernel and the oracle, and compares their
// results. Called by tests and lab. The tested kernel is the library (library.cpp) or any other function.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bounds.h"
#include "compare.h"
#include "fill.h"

namespace rapt::check {

// A function that computes out, and lse if it is present. It throws Error if it refuses the problem.
struct Kernel : std::function<void(const Problem&, const Inputs&, const Outputs&)> {
  using function::function;
  // The format to which the kernel is allowed to round the weights if V is FP8 and pv is f16 or not given. It is f16
  // for matrix instructions of a GPU.
  DType fp8_weights = DType::f16;
  // Whether the kernel may use FP8 instructions with narrow sums for products of FP8 q and k (lse_bound).
  bool narrow_products = false;
};

// rapt_sdpa on the CPU, or on a GPU with its own stream. On a GPU it uploads the inputs, and after the call it
// checks that the inputs and the memory around all tensors are unchanged. context may be NULL. Needs the library at
// link time.
Kernel library_kernel(rapt_context* context = nullptr, rapt_device device = {RAPT_DEVICE_CPU, 0});

struct Result {
  bool pass = false;
  bool refused = false;  // true if the kernel threw Error{unsupported}, or f32 overflows (range.h); reason in `message`
  int64_t samples = 0;   // number of pooled samples (seeds: seed, seed + 1, ...); together at least 4096 outputs
  Errors out, lse, plain;
  Bounds bounds;
  double lse_share = 0;   // largest lse error relative to its bound
  int64_t lse_worst = 0;  // row with this error
  std::string message;    // empty if the check passed
  std::string command;    // the command that repeats the check
};

Result check_problem(const Problem& problem, Fill fill, uint64_t seed, const Kernel& kernel);
// Checks several kernels on the same inputs with one reference, because computing the reference takes the longest time.
// Returns one result for each kernel. The fp8_weights of the kernels must be equal.
std::vector<Result> check_problem(const Problem& problem, Fill fill, uint64_t seed, const std::vector<Kernel>& kernels);

// One sample is enough if the outputs have at least this many elements.
inline constexpr int64_t pooled_outputs = 4096;

// Compares the outputs of one call (from make_outputs) with the oracle on every row_step-th query of each head; lse
// only if it is present. Use it for inputs that no fill made, or for problems that are too large for an oracle of all
// rows. If there are fewer than pooled_outputs elements, only max_abs counts. fp8_weights: see Kernel.
Result judge(const Problem& problem, std::optional<Fill> fill, const Inputs& inputs, const Outputs& outputs,
             int64_t row_step = 1, DType fp8_weights = DType::f16, bool narrow_products = false);

std::string rerun_command(const Problem& problem, Fill fill, uint64_t seed);

}  // namespace rapt::check
