// Classes of lengths: a plan for GPUs is made for the longest lengths of a class, so that a new length of a class that
// has been met neither plans nor compiles, and needs no more workspace. Used by plan.cpp, gpu.cpp and recent_calls.cpp.
#pragma once

#include <cstdint>

#include "problem/problem.h"

namespace rapt {

// The longest length of a length's class. Up to 16 each length is a class of its own; above, each octave has eight
// classes, so that 384, 512 and 4096 are each the longest of their class. No class has lengths on both sides of
// Band::longest, the limit that families test. `length` must be from 0 to 2^40.
int64_t longest_of_class(int64_t length);

// A problem's facts without its lists, with the longest lengths and totals of their classes.
Problem longest_of_class(const Problem& problem);

}  // namespace rapt
