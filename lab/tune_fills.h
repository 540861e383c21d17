// The distributions of input values with which rapt tune checks a candidate. Called by tune_gpu.cpp.
#pragma once

#include <functional>
#include <vector>

#include "check/fill.h"

namespace rapt::lab {

// All fills for a problem, in the order of the checks. The first one is Fill::normal.
std::vector<check::Fill> tune_fills(const Problem& problem);

// Calls check_one(fill) for each fill. If check_one throws Error{internal} (a result is wrong), throws the same error
// with the fill's name before its sentence. If check_one throws Error{unsupported} (the oracle's own values overflow),
// throws this error for Fill::normal; for another fill it continues with the next fill.
void check_fills(const std::vector<check::Fill>& fills, const std::function<void(check::Fill)>& check_one);

}  // namespace rapt::lab
