// Computes the accumulator's arithmetic in float64. There the truncated numbers and their sums are exact.
#include "accumulator.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "fill.h"
#include "format.h"

namespace rapt::check {
namespace {

// Returns x without its bits below 2^exponent.
double cut(double x, int exponent) { return std::ldexp(std::trunc(std::ldexp(x, -exponent)), exponent); }

double add_products(double accumulator, const double* a, const double* b, int64_t count, int fraction_bits) {
  double largest = std::fabs(accumulator);
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(a[i] * b[i]));
  if (largest == 0) return 0;
  const int last = std::ilogb(largest) - fraction_bits;
  double sum = cut(accumulator, last);
  for (int64_t i = 0; i < count; ++i) sum += cut(a[i] * b[i], last);
  return sum == 0 ? 0 : cut(sum, std::ilogb(sum) - fraction_bits);
}

double e4m3(double x) { return round_to(DType::e4m3, x); }

std::vector<double> normal_codes(int64_t count, uint64_t seed, uint64_t stream, double mean) {
  std::vector<double> x(static_cast<size_t>(count));
  double largest = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = mean + normal(seed, stream, i);
    largest = std::max(largest, std::fabs(x[i]));
  }
  for (double& value : x) value = e4m3(value * 448 / largest);
  return x;
}

std::vector<double> weight_codes(int64_t keys, uint64_t seed, uint64_t stream) {
  std::vector<double> x(static_cast<size_t>(keys));
  for (size_t i = 0; i < x.size(); ++i) x[i] = normal(seed, stream, i);
  const double max = *std::max_element(x.begin(), x.end());
  for (double& value : x) value = e4m3(256 * std::exp(value - max));
  return x;
}

// rel_rms of narrow_dot over all pairs of a vector of `left` and a vector of `right`.
double error_of(const std::vector<std::vector<double>>& left, const std::vector<std::vector<double>>& right,
                const NarrowAccumulator& model) {
  double error = 0, size = 0;
  for (const auto& a : left)
    for (const auto& b : right) {
      const double exact = std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
      const double difference = narrow_dot(a, b, model) - exact;
      error += difference * difference;
      size += exact * exact;
    }
  return std::sqrt(error / size);
}

}  // namespace

double narrow_dot(const std::vector<double>& a, const std::vector<double>& b, const NarrowAccumulator& model) {
  const auto count = static_cast<int64_t>(a.size());
  const int64_t flush = model.flush > 0 ? model.flush : std::numeric_limits<int64_t>::max();
  double accumulator = 0;
  float total = 0;
  for (int64_t first = 0, since = 0; first < count; first += model.products) {
    const int64_t n = std::min<int64_t>(model.products, count - first);
    accumulator = add_products(accumulator, a.data() + first, b.data() + first, n, model.fraction_bits);
    since += n;
    if (since < flush && first + n < count) continue;
    total += static_cast<float>(accumulator);
    accumulator = 0;
    since = 0;
  }
  return static_cast<double>(total);
}

double narrow_pv_error(int64_t keys, double mean_v, const NarrowAccumulator& model, uint64_t seed) {
  std::vector<std::vector<double>> rows, channels;
  for (uint64_t n = 0; n < 6; ++n) rows.push_back(weight_codes(keys, seed, 1000 + n));
  for (uint64_t n = 0; n < 8; ++n) channels.push_back(normal_codes(keys, seed, 2000 + n, mean_v));
  return error_of(rows, channels, model);
}

double narrow_qk_error(int64_t dim, const NarrowAccumulator& model, uint64_t seed) {
  std::vector<std::vector<double>> queries, keys;
  for (uint64_t n = 0; n < 32; ++n) queries.push_back(normal_codes(dim, seed, 3000 + n, 0));
  for (uint64_t n = 0; n < 64; ++n) keys.push_back(normal_codes(dim, seed, 4000 + n, 0));
  return error_of(queries, keys, model);
}

}  // namespace rapt::check
