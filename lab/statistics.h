// Median and quartiles of timings, and the clock.
// Called by run and bench.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

namespace rapt::lab {

struct Quartiles {
  double q1 = 0, median = 0, q3 = 0;
};

// Interpolates linearly between neighbours (numpy's default). Needs at least one value.
Quartiles quartiles(std::vector<double> values);

struct Samples {
  std::vector<double> us;  // one value for each sample: the mean time of its calls in microseconds
  int64_t calls = 1;       // number of calls in one sample; more than one if a call is too short for the clock
};

// (q3 - q1) / median; 0 if all samples are 0.
double spread(const Samples& samples);

// At least this many samples are taken, even if the time limit is exceeded.
inline constexpr int64_t fewest_samples = 5;

// Times calls with the host clock. body(n) makes call number n. The first `warmup` calls are not timed. Then it takes
// `iterations` samples, or fewer if they take longer than `seconds`.
Samples time_calls(int64_t warmup, int64_t iterations, const std::function<void(int64_t)>& body,
                   double seconds = std::numeric_limits<double>::infinity());

}  // namespace rapt::lab
