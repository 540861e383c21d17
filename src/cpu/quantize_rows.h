// RowLoops: the inner loops of quantisation over one row of channels, for the instruction set that the planner would
// use. All instruction sets give the same bits, since no operation is fused or reordered. Used by cpu/quantize.cpp.
#pragma once

#include <cstdint>

#include "kernels/shared/quantize.h"

namespace rapt::cpu {

struct RowLoops {
  // Converts f32, f16 or bf16 elements, `stride` elements apart, to float.
  void (*widen)(DType dtype, const void* from, int64_t stride, int64_t n, float* to);
  // Applies the Hadamard rotation in place to groups of `group` channels. signs: 1 or -1 for each channel.
  void (*rotate)(float* x, int64_t n, int group, const float* signs);
  void (*subtract)(float* x, const float* mean, int64_t n);
  // If x[c] is finite: sums[c] += x[c], ++counts[c].
  void (*add_finite)(const float* x, int64_t n, double* sums, int64_t* counts);
  // The largest finite magnitude as bits. amax_of_each: largest[c] = max(largest[c], |x[c]|).
  uint32_t (*amax)(const float* x, int64_t n);
  void (*amax_of_each)(const float* x, int64_t n, uint32_t* largest);
  // codes = FP8 of x * inverse. encode: one inverse for all elements. encode_each: one inverse for each element.
  void (*encode)(DType dtype, const float* x, int64_t n, float inverse, uint8_t* codes);
  void (*encode_each)(DType dtype, const float* x, int64_t n, const float* inverses, uint8_t* codes);
};

const RowLoops& row_loops();

}  // namespace rapt::cpu
