// Accumulator: an mma C fragment in f32, or in f16 (acc=f16). Device only.
#pragma once

#include "device/numeric.cuh"
#include "ptx/mma.cuh"

namespace rapt {

// get() converts to f32.
template <bool in_f16>
struct Accumulator {
  float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  template <DType dtype>
  void mma(const unsigned (&a)[4], unsigned b0, unsigned b1) {
    mma_m16n8k16<dtype>(sum, a, b0, b1);
  }
  float get(int i) const { return sum[i]; }
};
template <>
struct Accumulator<true> {
  unsigned sum[2] = {0, 0};
  template <DType dtype>
  void mma(const unsigned (&a)[4], unsigned b0, unsigned b1) {
    static_assert(dtype == DType::f16, "only products of f16 are summed in f16");
    mma_m16n8k16_f16(sum, a, b0, b1);
  }
  float get(int i) const { return f16_to_f32(static_cast<unsigned short>(sum[i / 2] >> (i % 2 * 16))); }
};

}  // namespace rapt
