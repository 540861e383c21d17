// QuantizeParams: one call of rapt_quantize as the CPU and the GPU kernels see it, and the arithmetic that both share
// to the last bit. Filled by quantize_rules.cpp; includes nothing outside shared/.
#pragma once

#include "hadamard.h"
#include "params.h"
#include "scale.h"

namespace rapt {

struct QuantizeParams {
  TensorRef input, output;  // [batch, heads, seqlen, dim]; packed: rows of all sequences, batch stride 0
  float* descale = nullptr;
  index_t descale_batch = 0, descale_head = 0, descale_position = 0, descale_channel = 0;  // strides
  float* mean = nullptr;                                                                   // null: not smoothed
  index_t mean_batch = 0, mean_head = 0, mean_channel = 0;
  ListRef<int> cu_seqlens;  // absent: dense
  index_t batch = 0, heads = 0, dim = 0;
  index_t seqlen = 0;  // rows of every sequence, or the most that one may have
  index_t total = 0;   // packed rows
  double percentile = 100.0;
  ScaleKind group = ScaleKind::tensor;
  bool hadamard = false, supplied = false;

  constexpr float* descale_at(index_t b, index_t h, index_t position, index_t channel) const {
    return descale + b * descale_batch + h * descale_head + position * descale_position + channel * descale_channel;
  }
  constexpr float* mean_at(index_t b, index_t h, index_t channel) const {
    return mean + b * mean_batch + h * mean_head + channel * mean_channel;
  }
  // Positions of descale in one head of one sequence: tokens (packed: those of the sequence), blocks or one.
  constexpr index_t positions() const {
    const int rows = rows_sharing(group);
    return rows == 0 ? 1 : seqlen / rows + (seqlen % rows != 0);
  }
};

// The rows of a sequence, held within the tensors whatever the list says.
struct QuantizeRows {
  index_t first = 0;  // packed row where it begins; 0 when dense
  index_t count = 0;
};
constexpr QuantizeRows quantize_rows(const QuantizeParams& p, index_t b) {
  if (!p.cu_seqlens.present()) return {0, p.seqlen};
  const index_t first = clamped(p.cu_seqlens[b], 0, p.total);
  return {first, clamped(p.cu_seqlens[b + 1] - first, 0, clamped(p.total - first, 0, p.seqlen))};
}
// Where the factor of row s of the sequence lies among those of its head: token factors of packed rows count rows.
constexpr index_t descale_position(const QuantizeParams& p, const QuantizeRows& rows, index_t s) {
  if (p.group == ScaleKind::token) return rows.first + s;
  return rows_sharing(p.group) == 0 ? 0 : s / rows_sharing(p.group);
}

namespace quantizing {

constexpr unsigned infinity_bits = 0x7f800000u, nan_code = 0x7f;  // the one NaN that e4m3 and e5m2 outputs hold

// Of what shares a factor: |x| as bits, which order as numbers do; 0 for what is not finite.
constexpr unsigned finite_magnitude(float x) {
  const unsigned magnitude = detail::bits_of(x) & 0x7fffffffu;
  return magnitude < infinity_bits ? magnitude : 0u;
}
constexpr bool is_finite(float x) { return (detail::bits_of(x) & infinity_bits) != infinity_bits; }

constexpr float largest_of(DType output) { return output == DType::e5m2 ? 57344.0f : 448.0f; }

// IEEE operations that no compiler fuses or replaces.
inline float multiplied(float a, float b) {
#if defined(__CUDACC__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
inline float divided(float a, float b) {
#if defined(__CUDACC__)
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

inline float descale_of(unsigned amax_bits, DType output) {
  if (amax_bits == 0) return 1.0f;
  const float descale = divided(detail::float_of(amax_bits), largest_of(output));
  return descale < 0x1p-126f ? 0x1p-126f : descale;
}
inline float inverse_of(float descale) { return divided(1.0f, descale); }

inline unsigned char sim8_code(float scaled) { return float_to_sim8(scaled); }

// A channel's mean: row s of the sequence joins sum s % mean_lanes in double, in order; then the sums are added, the
// first one first. Only finite values count; without any the mean is 0.
constexpr int mean_lanes = 32;
inline float mean_of(double sum, long long count) {
  return count == 0 ? 0.0f : static_cast<float>(sum / static_cast<double>(count));
}

// The order statistic that stands for the maximum: amax is the value of this rank, from 1, among `count` of them.
inline unsigned long long rank_of(double percentile, unsigned long long count) {
  const double exact = percentile * static_cast<double>(count) / 100.0;
  unsigned long long rank = static_cast<unsigned long long>(exact);
  if (static_cast<double>(rank) < exact) ++rank;
  return rank < 1 ? 1 : rank > count ? count : rank;
}
// It is found digit by digit, the highest first: of the values that begin with what is known, so many have each digit.
constexpr int digit_bits = 8, digits = 256, digit_passes = 4;
constexpr int shift_of(int pass) { return 8 * (digit_passes - 1 - pass); }
constexpr bool begins_with(unsigned magnitude, unsigned known, int pass) {
  return pass == 0 || magnitude >> (shift_of(pass) + digit_bits) == known;
}

}  // namespace quantizing
}  // namespace rapt
