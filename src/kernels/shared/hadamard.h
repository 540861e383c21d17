// The rotation of a head's channels before they are quantised: y = H S x / sqrt(n) over each aligned group of n
// channels, H Sylvester's Hadamard matrix, S a diagonal of fixed signs. Included by shared/quantize.h; the order of the
// additions is part of the definition, so that CPU and GPU give the same bits (docs/fp8.md).
#pragma once

namespace rapt::hadamard {

// Channels that are mixed: the largest power of two that divides dim, at most 256.
constexpr int group_of(long dim) {
  int n = 1;
  while (n < 256 && dim % (2 * n) == 0) n *= 2;
  return n;
}

// Whether a channel of the head changes its sign before it is mixed.
constexpr bool is_negative(long channel) {
  unsigned u = (static_cast<unsigned>(channel) + 1u) * 0x9e3779b1u;
  u ^= u >> 15;
  u *= 0x85ebca77u;
  return (u >> 31) != 0;
}

// 1 / sqrt(n), n a power of two up to 256, rounded to float.
constexpr float factor_of(int n) {
  float factor = 1.0f;
  for (; n >= 4; n /= 4) factor *= 0.5f;
  return n == 2 ? factor * 0x1.6a09e6p-1f : factor;
}

// H by log2(n) rounds of sums and differences: of channels 1 apart, then 2, 4 ... n / 2. `x` is written over.
constexpr void transform(float* x, int n) {
  for (int apart = 1; apart < n; apart *= 2)
    for (int first = 0; first < n; first += 2 * apart)
      for (int i = first; i < first + apart; ++i) {
        const float a = x[i], b = x[i + apart];
        x[i] = a + b;
        x[i + apart] = a - b;
      }
}

}  // namespace rapt::hadamard
