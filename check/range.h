// Detects finite inputs whose intermediate results overflow f32 (docs/semantics.md, Limits). rapt promises nothing for
// such inputs, so their results are not compared. check.cpp and stages.cpp call this before any comparison, so their
// verdicts agree.
#pragma once

#include <string>

#include "oracle.h"

namespace rapt::check {

// Tests every row_step-th query. Returns a sentence with the first row whose scores, logits or sum of weights times |v|
// overflow f32, or "". Input values that are not finite do not count.
std::string beyond_f32(const Reading& reading, int64_t row_step = 1);

}  // namespace rapt::check
