// The smallest use of rapt from C++: one query, two keys, and a result that can be calculated by hand. Built and run by
// tests/packaging/consumers.sh. Exits with 0 if the number is right.
#include <cmath>
#include <cstdio>
#include <rapt/rapt.hpp>

int main() {
  // The scores are 0 and ln 3, so the weights are 1/4 and 3/4. So out = 0.25 * 1 + 0.75 * 5 = 4.
  const float q[] = {1.0f}, k[] = {0.0f, 1.0986123f}, v[] = {1.0f, 5.0f};
  float out[] = {0.0f};
  rapt::sdpa({q, {1, 1, 1, 1}}, {k, {1, 1, 2, 1}}, {v, {1, 1, 2, 1}}, {out, {1, 1, 1, 1}});
  std::printf("rapt %s: out %.6f (4)\n", rapt_version(), static_cast<double>(out[0]));
  return std::fabs(out[0] - 4.0f) < 1e-5f ? 0 : 1;
}
