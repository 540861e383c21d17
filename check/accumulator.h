// A model of the accumulator of FP8 matrix instructions on Ada and Hopper, which keeps fewer bits than f32
// (docs/fp8.md). It describes the model, it does not measure a chip. Used by tests and for the table in docs/fp8.md.
#pragma once

#include <cstdint>
#include <vector>

namespace rapt::check {

struct NarrowAccumulator {
  int fraction_bits = 13;  // kept below the largest exponent of the addends; lower bits are cut off
  int products = 32;       // products that one instruction adds to the accumulator
  // After this many products the accumulator is added to an f32 sum and restarts from 0; 0: never.
  int64_t flush = 0;
};

// sum of a[i] * b[i]. Each instruction aligns its products and the accumulator to the largest exponent among them, cuts
// each to fraction_bits below it, adds, and cuts the result to fraction_bits below its own exponent.
double narrow_dot(const std::vector<double>& a, const std::vector<double>& b, const NarrowAccumulator& model);

// rel_rms of narrow_dot. narrow_pv_error: over rows of exponential weights, 256 exp(x - max) in E4M3 for `keys` logits
// x ~ N(0, 1), with values in E4M3, N(mean_v, 1) scaled to 448. The other: over products of N(0, 1) queries and keys of
// `dim` channels. The reference is the exact sum of the same codes, so rounding to E4M3 does not count.
double narrow_pv_error(int64_t keys, double mean_v, const NarrowAccumulator& model, uint64_t seed = 1);
double narrow_qk_error(int64_t dim, const NarrowAccumulator& model, uint64_t seed = 1);

}  // namespace rapt::check
