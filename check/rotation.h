// The Hadamard rotation of q and k before quantisation (docs/fp8.md), by its formula, in float64. Used by fill.cpp and
// by tests of the quantiser. Shares no code with the quantiser.
#pragma once

#include <cstdint>

namespace rapt::check {

// The number of channels that are mixed: the largest power of two that divides dim, at most 256.
int64_t rotation_group(int64_t dim);
// The sign, +1 or -1, of a channel of the head before mixing.
double rotation_sign(int64_t channel);
// y = H S x / sqrt(n) within each group of n channels of one row, H[i][j] = (-1)^popcount(i & j).
void rotate(double* row, int64_t dim);

}  // namespace rapt::check
