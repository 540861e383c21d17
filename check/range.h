// Where finite inputs lead beyond f32 on the way (docs/semantics.md, Limits): nothing is promised there, so nothing is
// judged. Called by check.cpp and stages.cpp before any comparison, so that their verdicts agree.
#pragma once

#include <string>

#include "oracle.h"

namespace rapt::check {

// A sentence with the first row, of every row_step-th query, whose scores, logits or sum of weights times |v| f32
// cannot hold, or "". Values that are not finite in the inputs do not count.
std::string beyond_f32(const Reading& reading, int64_t row_step = 1);

}  // namespace rapt::check
