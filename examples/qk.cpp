// The product Q.K^T in FP8, with one scale per head, compared with exact products.
//
// With an installed rapt:  c++ -std=c++20 qk.cpp $(pkg-config --cflags --libs rapt) -o qk
// Prints the largest difference. Exits with 1 if it is larger than rounding to f32 can explain.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <rapt/rapt.hpp>
#include <vector>

namespace {

// E4M3 codes of 1, -1.5, 2 and so on: a sign bit, four exponent bits (bias 7), three fraction bits.
rapt::E4m3 code(unsigned i) { return {static_cast<uint8_t>((i % 2 << 7) | (5 + i % 5) << 3 | i % 7)}; }
double value(rapt::E4m3 x) {
  const double magnitude = std::ldexp(1.0 + (x.bits & 7) / 8.0, (x.bits >> 3 & 15) - 7);
  return x.bits & 0x80 ? -magnitude : magnitude;
}

}  // namespace

int main() try {
  constexpr int64_t heads = 4, seqlen_q = 8, seqlen_k = 40, dim = 64;
  std::vector<rapt::E4m3> q(heads * seqlen_q * dim), k(heads * seqlen_k * dim);
  for (unsigned i = 0; i < q.size(); ++i) q[i] = code(i * 31 + i / 64);
  for (unsigned i = 0; i < k.size(); ++i) k[i] = code(i * 17 + i / 64 * 3);
  const std::vector<float> q_descale{0.5f, 0.25f, 2.0f, 1.0f}, k_descale{1.0f, 0.125f, 0.75f, 3.0f};

  std::vector<float> logits(heads * seqlen_q * seqlen_k);
  rapt::qk({q.data(), {1, heads, seqlen_q, dim}}, {k.data(), {1, heads, seqlen_k, dim}},
           {logits.data(), {1, heads, seqlen_q, seqlen_k}},
           {.scale = 0.125,
            .q_descale = {q_descale.data(), {1, heads}},
            .k_descale = {k_descale.data(), {1, heads}},
            .q_scales = rapt::Scales::head,
            .k_scales = rapt::Scales::head});

  double difference = 0, largest = 0;
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t i = 0; i < seqlen_q; ++i)
      for (int64_t j = 0; j < seqlen_k; ++j) {
        double sum = 0;
        for (int64_t d = 0; d < dim; ++d)
          sum += value(q[(h * seqlen_q + i) * dim + d]) * value(k[(h * seqlen_k + j) * dim + d]);
        sum *= 0.125 * q_descale[h] * k_descale[h];
        const double logit = logits[(h * seqlen_q + i) * seqlen_k + j];
        difference = std::max(difference, std::fabs(logit - sum)), largest = std::max(largest, std::fabs(sum));
      }
  std::cout << "logits up to " << largest << ", largest difference from exact products " << difference << "\n";
  return difference <= 1e-6 * largest ? 0 : 1;
} catch (const rapt::Exception& error) {
  std::cerr << "rapt: " << error.what() << "\n";
  return 1;
}
