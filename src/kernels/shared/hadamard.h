// The Hadamard rotation of a head's channels before quantisation: y = H S x / sqrt(n) for each aligned group of n
// channels. H is Sylvester's Hadamard matrix, S a diagonal matrix of fixed signs. The order of additions is part of the
// definition, so that CPU and GPU give the same bits (docs/fp8.md). Included by shared/quantize.h.
#pragma once

namespace rapt::hadamard {

// Returns n: the largest power of two that divides dim, at most 256.
constexpr int group_of(long dim) {
  int n = 1;
  while (n < 256 && dim % (2 * n) == 0) n *= 2;
  return n;
}

// Returns whether S flips the sign of this channel of the head.
constexpr bool is_negative(long channel) {
  unsigned u = (static_cast<unsigned>(channel) + 1u) * 0x9e3779b1u;
  u ^= u >> 15;
  u *= 0x85ebca77u;
  return (u >> 31) != 0;
}

// 1 / sqrt(n) rounded to float; n is a power of two up to 256.
constexpr float factor_of(int n) {
  float factor = 1.0f;
  for (; n >= 4; n /= 4) factor *= 0.5f;
  return n == 2 ? factor * 0x1.6a09e6p-1f : factor;
}

// Applies H in place by log2(n) butterfly rounds with strides 1, 2, 4 ... n / 2.
constexpr void transform(float* x, int n) {
  for (int stride = 1; stride < n; stride *= 2)
    for (int first = 0; first < n; first += 2 * stride)
      for (int i = first; i < first + stride; ++i) {
        const float a = x[i], b = x[i + stride];
        x[i] = a + b;
        x[i + stride] = a - b;
      }
}

}  // namespace rapt::hadamard
