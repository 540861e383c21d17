// Common helpers of the CPU tests: one attention call as a value (problem, inputs, outputs), the fills that cases name
// (hash, index, identity), and expectations about outputs.
// Included only by *_test.cpp and reports_*.cpp of this folder. Needs GoogleTest.
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

// True if long tests should be shorter: under sanitizers each takes ten times as long (RAPT_TEST_QUICK=1).
bool quick();

// One call. make() returns zeroed tensors for all that the problem line needs, except: masks keep all keys, scales are
// 1, lengths and starts are those of the line. run() creates poisoned outputs and calls the library.
struct Call {
  Problem problem;
  check::Inputs in;
  check::Outputs out;
  rapt_status status = RAPT_OK;
  std::string message;
};
Call make(const std::string& line);
Call make(DType type, const std::string& rest);              // the line begins with the type's name
Call& try_run(Call& call, rapt_context* context = nullptr);  // keeps status and message
Call& run(Call& call, rapt_context* context = nullptr);      // expects success and unchanged margins

// Runs body for each type, with its name in failures.
void for_each_type(const std::function<void(DType)>& body, const std::vector<DType>& types = float_types);

// Elements, in logical order.
void each_index(const std::vector<int64_t>& shape, const std::function<void(const std::vector<int64_t>& at)>& visit);
void put(HostTensor& tensor, const std::vector<int64_t>& at, double value);
void fill(HostTensor& tensor, double value);
void fill(HostTensor& tensor, const std::function<double(const std::vector<int64_t>& at)>& value);
void fill_hash(HostTensor& tensor, uint64_t seed);  // pseudo-random in [-1, 1)
void fill_hash(Call& call, uint64_t seed = 1);      // q, k and v
// A value of V from its key and channel: dense [b, h, j, d], packed [j, h, d].
void fill_value(HostTensor& v, const std::function<double(int64_t j, int64_t d)>& value);
void fill_index(HostTensor& v);     // v[j][0] = 1, v[j][1] = j, else 0
void fill_identity(HostTensor& v);  // v[j][j] = 1, else 0: an output row is the row of weights
HostTensor slice(HostTensor tensor, size_t dim, int64_t begin, int64_t end);  // a view
HostTensor copy_with_strides(const HostTensor& tensor, const std::vector<int64_t>& strides);

// Bits.
std::vector<unsigned char> bits(const HostTensor& tensor);  // the elements' bytes, in logical order
void expect_same_bits(const Call& a, const Call& b);        // out and, where present, lse
void expect_same_bits(const HostTensor& a, const HostTensor& b);
void expect_finite(const HostTensor& tensor);

// Values. The tolerance of an output is derived for sums of |p||v| <= magnitude: P and the output are each rounded once
// (P to check::probability_format), and a float32 sum over a tile of keys has 128 float32 roundings.
double tolerance(DType type, double magnitude);  // of a call with one dtype for all
double tolerance(const Problem& problem, double magnitude);
double lse_tolerance(double lse);
void expect_row(const Call& call, const std::vector<int64_t>& row, const std::vector<double>& expected);
void expect_empty_row(const Call& call, const std::vector<int64_t>& row);  // out exactly 0, lse = -inf
void expect_lse(const Call& call, const std::vector<int64_t>& at, double expected);

// Compares every output with the float64 oracle within tolerance(). A non-finite reference accepts any non-finite
// value.
void expect_oracle(const Call& call);
void expect_oracle(const Call& call, const check::Reference& reference);  // of forward(), for several calls
struct Reference {
  std::vector<double> out, lse;  // logical order of the outputs
};
Reference oracle(const Call& call);

double largest(const HostTensor& tensor);  // max |element|, finite ones only

}  // namespace rapt::test
