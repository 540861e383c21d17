// Implements rotation.h with a plain sum of n terms for each channel: n^2 additions. (The quantiser uses a butterfly.)
#include "rotation.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

namespace rapt::check {

int64_t rotation_group(int64_t dim) {
  int64_t n = 1;
  while (n < 256 && dim % (2 * n) == 0) n *= 2;
  return n;
}

double rotation_sign(int64_t channel) {
  uint32_t u = (static_cast<uint32_t>(channel) + 1) * 0x9e3779b1u;
  u ^= u >> 15;
  u *= 0x85ebca77u;
  return u >> 31 ? -1.0 : 1.0;
}

void rotate(double* row, int64_t dim) {
  const int64_t n = rotation_group(dim);
  std::vector<double> mixed(static_cast<size_t>(n));
  for (int64_t first = 0; first < dim; first += n) {
    for (int64_t i = 0; i < n; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < n; ++j) {
        const double term = rotation_sign(first + j) * row[first + j];
        sum += std::popcount(static_cast<uint64_t>(i & j)) % 2 ? -term : term;
      }
      mixed[static_cast<size_t>(i)] = sum / std::sqrt(static_cast<double>(n));
    }
    std::copy(mixed.begin(), mixed.end(), row + first);
  }
}

}  // namespace rapt::check
