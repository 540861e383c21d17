// The Hadamard rotation of q and k before quantisation (docs/fp8.md), computed by its formula in float64. Used by
// fill.cpp and by tests of the quantiser. It shares no code with the quantiser.
#pragma once

#include <cstdint>

namespace rapt::check {

// The number n of channels that are rotated together: the largest power of two that divides dim, at most 256.
int64_t rotation_group(int64_t dim);
// The sign, +1 or -1, of a channel of the head before mixing.
double rotation_sign(int64_t channel);
// Rotates one row. For each group of n channels: y = H S x / sqrt(n), where H[i][j] = (-1)^popcount(i & j) and S has
// the signs.
void rotate(double* row, int64_t dim);

}  // namespace rapt::check
