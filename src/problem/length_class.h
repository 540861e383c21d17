// Classes of lengths. A GPU plan is made for the longest lengths of a class. A new length of a known class needs no
// planning, no compiling and no more workspace. Used by plan.cpp, gpu.cpp and recent_calls.cpp.
#pragma once

#include <cstdint>

#include "problem/problem.h"

namespace rapt {

// The longest length in the class of `length`. Each length up to 16 is its own class. Above 16, there are eight classes
// between one power of two and the next. For example, 384, 512 and 4096 are each the longest length of a class.
// Band::longest, the limit that families test, is never inside a class. `length` must be from 0 to 2^40.
int64_t longest_of_class(int64_t length);

// Returns the PlanFacts of the problem, without lists (lengths, starts), strides and layout. Lengths and totals are the
// longest of their classes.
Problem longest_of_class(const Problem& problem);

}  // namespace rapt
