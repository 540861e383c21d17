// Median and quartiles of timings, and the clock that takes them.
// Called by run and bench.
#pragma once

#include <functional>
#include <vector>

namespace rapt::lab {

struct Quartiles {
  double q1 = 0, median = 0, q3 = 0;
};

// Linear between neighbours (numpy's default). Needs one value or more.
Quartiles quartiles(std::vector<double> values);

struct Samples {
  std::vector<double> us;  // microseconds of one call, the mean over `calls` calls
  int64_t calls = 1;       // calls in one sample: more than one where a call is too short for the clock
};

// Host clock. body(n) makes call number n; the first `warmup` calls are not timed, then `iterations` samples are.
Samples time_calls(int64_t warmup, int64_t iterations, const std::function<void(int64_t)>& body);

}  // namespace rapt::lab
