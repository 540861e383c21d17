// Detects finite inputs whose intermediate results overflow f32 (docs/semantics.md, Limits). Nothing is promised for
// them, so they are not judged. Called by check.cpp and stages.cpp before any comparison, so their verdicts agree.
#pragma once

#include <string>

#include "oracle.h"

namespace rapt::check {

// A sentence with the first row (of every row_step-th query) whose scores, logits or sum of weights times |v| overflow
// f32, or "". Non-finite input values do not count.
std::string beyond_f32(const Reading& reading, int64_t row_step = 1);

}  // namespace rapt::check
