// The distributions of input values with which rapt tune checks a candidate. Called by tune_gpu.cpp.
#pragma once

#include <functional>
#include <vector>

#include "check/fill.h"

namespace rapt::lab {

// All fills for a problem, in the order of the checks. The first one is Fill::normal.
std::vector<check::Fill> tune_fills(const Problem& problem);

// Calls check_one(fill) for each fill. check_one throws Error{internal} if a result is wrong: then throws the same
// error, with the fill's name before its sentence. check_one throws Error{unsupported} if the oracle's own values
// overflow: then goes on with the next fill, except after Fill::normal.
void check_fills(const std::vector<check::Fill>& fills, const std::function<void(check::Fill)>& check_one);

}  // namespace rapt::lab
