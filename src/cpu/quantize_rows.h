// The loops of quantisation over one row of channels, for the best of this machine's instruction sets that the planner
// would use. Used by cpu/quantize.cpp. All sets give the same bits: no operation here is fused or reordered.
#pragma once

#include <cstdint>

#include "kernels/shared/quantize.h"

namespace rapt::cpu {

struct RowLoops {
  // Elements of f32, f16 or bf16, `stride` elements apart, widened.
  void (*widen)(DType dtype, const void* from, int64_t stride, int64_t n, float* to);
  // Rotates groups of `group` channels in place; signs: 1 or -1 for each of them.
  void (*rotate)(float* x, int64_t n, int group, const float* signs);
  void (*subtract)(float* x, const float* mean, int64_t n);
  // sums[c] += x[c] and ++counts[c] where x is finite.
  void (*add_finite)(const float* x, int64_t n, double* sums, int64_t* counts);
  // The largest finite magnitude as bits, and that of each channel joined to those in `largest`.
  uint32_t (*amax)(const float* x, int64_t n);
  void (*amax_of_each)(const float* x, int64_t n, uint32_t* largest);
  // Codes of x * inverse, one factor for all or one for each.
  void (*encode)(DType dtype, const float* x, int64_t n, float inverse, uint8_t* codes);
  void (*encode_each)(DType dtype, const float* x, int64_t n, const float* inverses, uint8_t* codes);
};

const RowLoops& row_loops();

}  // namespace rapt::cpu
