// QuantizeParams: the parameters of one rapt_quantize call, for CPU and GPU; and the arithmetic that must give the same
// bits on both. Filled by quantize_rules.cpp. Includes nothing outside shared/.
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
  index_t seqlen = 0;  // dense: of every sequence; varlen: the maximum
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
  // Number of descales for one head of one sequence: one per token, one per block, or one in total.
  constexpr index_t positions() const {
    const int rows = rows_sharing(group);
    return rows == 0 ? 1 : seqlen / rows + (seqlen % rows != 0);
  }
};

// The rows of a sequence. They are clamped to the tensors, because cu_seqlens is not validated on a GPU.
struct QuantizeRows {
  index_t first = 0;  // packed row at which the sequence begins; 0 if dense
  index_t count = 0;
};
constexpr QuantizeRows quantize_rows(const QuantizeParams& p, index_t b) {
  if (!p.cu_seqlens.present()) return {0, p.seqlen};
  const index_t first = clamped(p.cu_seqlens[b], 0, p.total);
  return {first, clamped(p.cu_seqlens[b + 1] - first, 0, clamped(p.total - first, 0, p.seqlen))};
}
// Returns the index of the descale of row s of the sequence. Token descales of packed tensors are indexed by packed
// row.
constexpr index_t descale_position(const QuantizeParams& p, const QuantizeRows& rows, index_t s) {
  if (p.group == ScaleKind::token) return rows.first + s;
  return rows_sharing(p.group) == 0 ? 0 : s / rows_sharing(p.group);
}

namespace quantizing {

constexpr unsigned infinity_bits = 0x7f800000u, nan_code = 0x7f;  // the only NaN code in e4m3 and e5m2 outputs

// Returns |x| as bits, which have the same order as the numbers. Returns 0 if x is not finite.
constexpr unsigned finite_magnitude(float x) {
  const unsigned magnitude = detail::bits_of(x) & 0x7fffffffu;
  return magnitude < infinity_bits ? magnitude : 0u;
}
constexpr bool is_finite(float x) { return (detail::bits_of(x) & infinity_bits) != infinity_bits; }

constexpr float largest_of(DType output) { return output == DType::e5m2 ? 57344.0f : 448.0f; }

// The compiler cannot fuse or approximate these IEEE operations.
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

// The mean of a channel: row s is added to partial sum s % mean_lanes, in double, in order. Then the partial sums are
// added in order. Only finite values count. If there is none, the mean is 0.
constexpr int mean_lanes = 32;
inline float mean_of(double sum, long long count) {
  return count == 0 ? 0.0f : static_cast<float>(sum / static_cast<double>(count));
}

// Returns the rank (from 1) of the value that is the percentile of `count` values. This value is amax.
inline unsigned long long rank_of(double percentile, unsigned long long count) {
  const double exact = percentile * static_cast<double>(count) / 100.0;
  unsigned long long rank = static_cast<unsigned long long>(exact);
  if (static_cast<double>(rank) < exact) ++rank;
  return rank < 1 ? 1 : rank > count ? count : rank;
}
// The value is found by radix selection. The passes go from the highest digit to the lowest. Each pass makes a
// histogram of one digit, over the values that begin with the digits found so far (the prefix).
constexpr int digit_bits = 8, digits = 256, digit_passes = 4;
constexpr int shift_of(int pass) { return 8 * (digit_passes - 1 - pass); }
constexpr bool has_prefix(unsigned magnitude, unsigned prefix, int pass) {
  return pass == 0 || magnitude >> (shift_of(pass) + digit_bits) == prefix;
}

}  // namespace quantizing
}  // namespace rapt
