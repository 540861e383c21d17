// Common functions of the CPU tests: an attention call as a struct (problem, inputs, outputs), functions that fill
// tensors (hash, index, identity), and expectations about outputs. Included only by *_test.cpp and reports_*.cpp of
// this folder. Needs GoogleTest.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "check/oracle.h"
#include "check/tensor.h"
#include "problem/problem.h"

namespace rapt::test {

using check::HostTensor;
using check::make_strided;
using check::make_tensor;

inline constexpr double infinity = std::numeric_limits<double>::infinity();
inline constexpr double nan = std::numeric_limits<double>::quiet_NaN();
inline const std::vector<DType> float_types = {DType::f16, DType::bf16, DType::f32};

// True if long tests should run a shorter version (RAPT_TEST_QUICK=1), because sanitizers make them ten times slower.
bool quick();

// One call. make() creates all tensors that the problem line needs. They are zero, with these exceptions: masks keep
// all keys, scales are 1, and lengths and starts are those of the line. run() creates poisoned outputs and calls the
// library.
struct Call {
  Problem problem;
  check::Inputs in;
  check::Outputs out;
  rapt_status status = RAPT_OK;
  std::string message;
};
Call make(const std::string& line);
Call make(DType type, const std::string& rest);              // the line is the type's name, then `rest`
Call& try_run(Call& call, rapt_context* context = nullptr);  // keeps status and message
Call& run(Call& call, rapt_context* context = nullptr);      // expects success and unchanged margins

// Runs body for each type. Failures have the name of the type.
void for_each_type(const std::function<void(DType)>& body, const std::vector<DType>& types = float_types);

// Access to elements by logical index.
void each_index(const std::vector<int64_t>& shape, const std::function<void(const std::vector<int64_t>& at)>& visit);
void put(HostTensor& tensor, const std::vector<int64_t>& at, double value);
void fill(HostTensor& tensor, double value);
void fill(HostTensor& tensor, const std::function<double(const std::vector<int64_t>& at)>& value);
void fill_hash(HostTensor& tensor, uint64_t seed);  // pseudo-random in [-1, 1)
void fill_hash(Call& call, uint64_t seed = 1);      // q, k and v
// An element of V, computed from its key and channel. `at` is [b, h, j, d] for dense and [j, h, d] for packed tensors.
void fill_value(HostTensor& v, const std::function<double(int64_t j, int64_t d)>& value);
void fill_index(HostTensor& v);     // v[j][0] = 1, v[j][1] = j, all other elements are 0
void fill_identity(HostTensor& v);  // v[j][j] = 1, all other elements are 0; so a row of out is a row of weights
HostTensor slice(HostTensor tensor, size_t dim, int64_t begin, int64_t end);  // a view
HostTensor copy_with_strides(const HostTensor& tensor, const std::vector<int64_t>& strides);

// Expectations about bits.
std::vector<unsigned char> bits(const HostTensor& tensor);  // the elements' bytes, in logical order
void expect_same_bits(const Call& a, const Call& b);        // compares out and, if present, lse
void expect_same_bits(const HostTensor& a, const HostTensor& b);
void expect_finite(const HostTensor& tensor);

// Expectations about values. The tolerance of an output is derived for sums of |p||v| <= magnitude. P and the output
// are rounded once each (P to check::probability_format), and a float32 sum over a tile of keys has 128 float32
// roundings.
double tolerance(DType type, double magnitude);  // for a call in which all tensors have this dtype
double tolerance(const Problem& problem, double magnitude);
double lse_tolerance(double lse);
void expect_row(const Call& call, const std::vector<int64_t>& row, const std::vector<double>& expected);
void expect_empty_row(const Call& call, const std::vector<int64_t>& row);  // expects out = 0 and lse = -inf
void expect_lse(const Call& call, const std::vector<int64_t>& at, double expected);

// Expects every output to agree with the float64 oracle within tolerance(). If a reference value is not finite, any
// value that is not finite is accepted.
void expect_oracle(const Call& call);
void expect_oracle(const Call& call, const check::Reference& reference);  // reference: a result of forward()
struct Reference {
  std::vector<double> out, lse;  // logical order of the outputs
};
Reference oracle(const Call& call);

double largest(const HostTensor& tensor);  // the largest magnitude of all finite elements

}  // namespace rapt::test
