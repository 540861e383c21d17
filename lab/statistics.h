// Median and quartiles of timings, and the clock.
// Called by run and bench.
#pragma once

#include <functional>
#include <vector>

namespace rapt::lab {

struct Quartiles {
  double q1 = 0, median = 0, q3 = 0;
};

// Interpolates linearly between neighbours (numpy's default). Needs at least one value.
Quartiles quartiles(std::vector<double> values);

struct Samples {
  std::vector<double> us;  // microseconds per call: the mean over `calls` calls
  int64_t calls = 1;       // calls in one sample: more than one if a call is too short for the clock
};

// Uses the host clock. body(n) makes call number n. The first `warmup` calls are not timed; then it takes `iterations`
// samples.
Samples time_calls(int64_t warmup, int64_t iterations, const std::function<void(int64_t)>& body);

}  // namespace rapt::lab
