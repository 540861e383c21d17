// Makes smaller problems of the same kind, on which a kernel configuration can be checked in a short time. Called by
// emulate.cpp and tune_gpu.cpp.
#pragma once

#include <cstdint>

#include "kernels/config_table.h"
#include "problem/problem.h"

namespace rapt::lab {

// The query rows of a CTA, and the keys that it processes in one step of its loop.
int64_t rows_of_a_tile(const KernelConfig& config);
int64_t keys_of_a_step(const KernelConfig& config);

// False for problems with lists of lengths or explicit strides.
bool can_be_shortened(const Problem& problem);
// The same kind of problem with at most `rows` rows, `keys` keys and a few heads. Needs can_be_shortened().
Problem shortened(Problem problem, int64_t rows, int64_t keys);

}  // namespace rapt::lab
