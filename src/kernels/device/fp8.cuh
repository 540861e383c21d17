// Quantisation to FP8, for the kernels of rapt_quantize and rapt_kv_append: the amax of some values, and four codes at
// once. Results have the same bits as on the CPU (cpu/quantize_rows.cpp).
#pragma once

#include "device/numeric.cuh"
#include "shared/quantize.h"

namespace rapt {
namespace quantizing {

inline unsigned max_of(unsigned a, unsigned b) { return a > b ? a : b; }

// Returns the largest finite magnitude as bits. fmaxf ignores NaN. If the result is infinity (rare), a second loop
// leaves out infinities.
template <int n>
inline unsigned chunk_amax(const float (&y)[n]) {
  float most = 0.0f;
  for (int i = 0; i < n; ++i) most = fmaxf(most, fabsf(y[i]));
  unsigned largest = detail::bits_of(most);
  if (largest == infinity_bits) {
    largest = 0;
    for (int i = 0; i < n; ++i) largest = max_of(largest, finite_magnitude(y[i]));
  }
  return largest;
}

// Replaces NaN among four FP8 values by nan_code, since GPUs differ in the sign and payload of NaN. Conversion
// saturates, so that only NaN is above the largest number.
template <DType output>
constexpr unsigned canonical_nan(unsigned codes) {
  constexpr unsigned up = output == DType::e4m3 ? 0x01010101u : 0x04040404u;  // the carry of a NaN reaches the sign bit
  const unsigned nans = ((codes & 0x7f7f7f7fu) + up) & 0x80808080u;
  return (codes | (output == DType::e4m3 ? 0u : nans - (nans >> 7))) & ~nans;
}

// Returns the codes of four values, the first one in the low byte.
template <DType output>
inline unsigned fp8_codes(const float* scaled) {
  static_assert(is_tensor_core_fp8(output));
  const auto pair = [&](int i) {
    return unsigned{output == DType::e4m3 ? pack_e4m3x2(scaled[i], scaled[i + 1])
                                          : pack_e5m2x2(scaled[i], scaled[i + 1])};
  };
  return canonical_nan<output>(pair(0) | pair(2) << 16);
}

}  // namespace quantizing
}  // namespace rapt
