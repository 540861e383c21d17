// Median and quartiles of timings, and the clock.
// Called by run and bench.
#include "lab/statistics.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace rapt::lab {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double shortest_sample_us = 20;  // 1000 times the time of reading the clock

double microseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

}  // namespace

Quartiles quartiles(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    const double place = share * static_cast<double>(values.size() - 1);
    const auto below = static_cast<size_t>(place);
    const size_t above = std::min(below + 1, values.size() - 1);
    return values[below] + (values[above] - values[below]) * (place - std::floor(place));
  };
  return {at(0.25), at(0.5), at(0.75)};
}

double spread(const Samples& samples) {
  const Quartiles time = quartiles(samples.us);
  return time.median > 0 ? (time.q3 - time.q1) / time.median : 0;
}

Samples time_calls(int64_t warmup, int64_t iterations, const std::function<void(int64_t)>& body, double seconds) {
  int64_t call = 0;
  const Clock::time_point warm_begin = Clock::now();
  for (; call < warmup; ++call) body(call);
  const double warm_us = warmup > 0 ? microseconds_since(warm_begin) / static_cast<double>(warmup) : shortest_sample_us;
  Samples samples;
  samples.calls = std::max<int64_t>(1, static_cast<int64_t>(std::ceil(shortest_sample_us / std::max(warm_us, 0.01))));
  const Clock::time_point first = Clock::now();
  for (int64_t sample = 0; sample < iterations; ++sample) {
    if (sample >= fewest_samples && microseconds_since(first) > seconds * 1e6) break;
    const Clock::time_point begin = Clock::now();
    for (int64_t n = 0; n < samples.calls; ++n) body(call++);
    samples.us.push_back(microseconds_since(begin) / static_cast<double>(samples.calls));
  }
  return samples;
}

}  // namespace rapt::lab
