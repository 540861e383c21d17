// A model of the accumulator of FP8 matrix instructions on Ada and Hopper. This accumulator keeps fewer bits than f32
// (docs/fp8.md). These functions compute the model's errors; they do not measure a GPU. Used by tests, and for the
// table in docs/fp8.md.
#pragma once

#include <cstdint>
#include <vector>

namespace rapt::check {

struct NarrowAccumulator {
  int fraction_bits = 13;  // number of bits kept below the largest exponent of the addends; lower bits are cut off
  int products = 32;       // number of products that one instruction adds to the accumulator
  // After this number of products the accumulator is added to an f32 sum, and restarts from 0. 0 means never.
  int64_t flush = 0;
};

// The sum of a[i] * b[i] in this model. Each instruction adds its products and the accumulator in three steps. It cuts
// each addend to fraction_bits below the largest exponent of all addends. It adds them. It cuts the sum to
// fraction_bits below the sum's own exponent.
double narrow_dot(const std::vector<double>& a, const std::vector<double>& b, const NarrowAccumulator& model);

// Both return rel_rms of narrow_dot on random inputs in E4M3. The reference is the exact sum of the same codes, so the
// rounding to E4M3 does not count.
// narrow_pv_error: products of softmax weights and values. The weights are 256 exp(x - max) for `keys` logits x ~ N(0,
// 1). The values are N(mean_v, 1), scaled so that the largest is 448. The second function: products of N(0, 1) queries
// and keys with `dim` channels.
double narrow_pv_error(int64_t keys, double mean_v, const NarrowAccumulator& model, uint64_t seed = 1);
double narrow_qk_error(int64_t dim, const NarrowAccumulator& model, uint64_t seed = 1);

}  // namespace rapt::check
