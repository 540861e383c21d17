// What a score passes through between q.k and softmax, in the order of docs/semantics.md: scale, soft cap, bias, ALiBi,
// boolean mask, range of keys. Works on one element; the caller walks its fragment. Device only.
#pragma once

#include "shared/config.h"
#include "shared/params.h"
#include "softmax.cuh"

namespace rapt {

// tanh by one exponential: exact at 0 and at infinity, absolute error below 3e-7 (tanh.approx: 5e-4).
inline float tanh_by_exp2(float x) { return 1.0f - 2.0f / (exp2_approx(x * (2.0f * log2_e)) + 1.0f); }

// Scores of one row of a head, by key.
template <AttentionConfig cfg>
struct RowScore {
  const AttentionParams& p;
  const char *bias = nullptr, *mask = nullptr;  // of (batch, head, row, key 0)
  float scale, slope = 0.0f;
  index_t diagonal = 0;  // i + off

  RowScore(const AttentionParams& params, float softmax_scale, index_t offset, index_t batch, index_t head, index_t row)
      : p(params), scale(softmax_scale) {
    if constexpr (cfg.bias != DType::none)
      bias = static_cast<const char*>(p.bias.data) +
             bytes_of(cfg.bias) * (batch * p.bias.batch + head * p.bias.head + row * p.bias.query);
    if constexpr (cfg.mask)
      mask = static_cast<const char*>(p.mask.data) + batch * p.mask.batch + head * p.mask.head + row * p.mask.query;
    if constexpr (cfg.alibi) slope = p.alibi_slopes[batch * p.alibi_batch + head * p.alibi_head];
    diagonal = row + offset;
  }

  // The natural logit of key j, from the raw product; -inf where bias or mask hide it.
  float operator()(float product, index_t j) const {
    float x = product * scale;
    if constexpr (cfg.softcap) x = p.softcap * tanh_by_exp2(x / p.softcap);
    if constexpr (cfg.bias != DType::none) x += load_element<cfg.bias>(bias, j * p.bias.key);
    if constexpr (cfg.alibi) {
      const index_t distance = diagonal - j;
      x -= slope * static_cast<float>(distance < 0 ? -distance : distance);
    }
    if constexpr (cfg.mask) x = mask[j * p.mask.key] != 0 ? x : minus_infinity;
    return x;
  }
};

}  // namespace rapt
