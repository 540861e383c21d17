// Makes smaller problems of the same kind, on which a kernel configuration can be checked in a short time. Called by
// emulate.cpp and tune_gpu.cpp.
#pragma once

#include <cstdint>

#include "problem/problem.h"

namespace rapt::lab {

// False for problems with lists of lengths or explicit strides.
bool can_be_shortened(const Problem& problem);
// A problem of the same kind with one batch entry, a few heads, and at most `rows` query rows and `keys` keys. If the
// given problem has as many rows as keys, the result has as many rows as keys, too; in this case the larger of the two
// limits is used for both. Requires can_be_shortened().
Problem shortened(Problem problem, int64_t rows, int64_t keys);

}  // namespace rapt::lab
