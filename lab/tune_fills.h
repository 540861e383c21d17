// The distributions of input values with which rapt tune checks a candidate. Called by tune_gpu.cpp.
#pragma once

#include <functional>
#include <vector>

#include "check/fill.h"

namespace rapt::lab {

// All fills for a problem, in the order of the checks. The first one is Fill::normal.
std::vector<check::Fill> tune_fills(const Problem& problem);

// Calls check_one(fill) for each fill. If it throws Error{internal}, because a result is wrong, throws the same error
// with the fill's name in front of its sentence. Skips a fill for which it throws Error{unsupported}: the oracle's own
// values overflow. Fill::normal is never skipped.
void check_fills(const std::vector<check::Fill>& fills, const std::function<void(check::Fill)>& check_one);

}  // namespace rapt::lab
