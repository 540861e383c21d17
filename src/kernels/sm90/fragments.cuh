// Operations on the fragments of wgmma that a thread of attention_sm90 holds. Device only.
#pragma once

#include "device/numeric.cuh"

namespace rapt {

// Converts weights to the A operand of PV. The accumulator has the same layout as the operand.
template <DType dtype, int n_tiles>
inline void pack(unsigned (&to)[n_tiles / 2][4], const float (&weights)[1][n_tiles][4]) {
#pragma unroll
  for (int n = 0; n < n_tiles; ++n)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      to[n / 2][n % 2 * 2 + half] = pack2<dtype>(weights[0][n][2 * half], weights[0][n][2 * half + 1]);
}

// Multiplies the two rows of an output fragment by their factors.
template <int tiles>
inline void rescale(float (&o)[1][tiles][4], const float (&factors)[2]) {
#pragma unroll
  for (int n = 0; n < tiles; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) o[0][n][i] *= factors[i / 2];
}

template <int tiles>
inline void set_zero(float (&o)[1][tiles][4]) {
#pragma unroll
  for (int n = 0; n < tiles; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) o[0][n][i] = 0.0f;
}

}  // namespace rapt
