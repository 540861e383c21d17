// RowScoreChain: the operations between q.k and softmax, for one score at a time. Device only.
#pragma once

#include "numeric.cuh"
#include "shared/params.h"
#include "shared/score_chain.h"

// A score modification by the user. If a translation unit defines the macro RAPT_USER_SCORE before it includes a
// kernel, then
//     x = RAPT_USER_SCORE(x, batch, head, i, j)
// is applied between ALiBi and the mask. head: query head; i, j: query and key of the sequence. cfg.scale_in_exp2 must
// be false.
#ifdef RAPT_USER_SCORE
namespace rapt {
constexpr bool has_user_score = true;
}
#else
#define RAPT_USER_SCORE(x, batch, head, i, j) (x)
namespace rapt {
constexpr bool has_user_score = false;
}
#endif

namespace rapt {

// Computes tanh. The relative error is below 7e-7, so that the error of a score does not grow with the soft cap
// (tanh.approx: 5e-4).
struct FastTanh {
  // Computes both, because a branch for each score would be slower.
  static float of(float x) {
    const float with_polynomial = small(x), with_exponential = large(x);
    return x * x <= 0.25f ? with_polynomial : with_exponential;
  }

 private:
  // An odd polynomial, for |x| <= 0.5: a Chebyshev fit of tanh(x) / x in x^2 with a relative error below 1.1e-7.
  static float small(float x) {
    const float t = x * x;
    float y = fmaf(0.01714132f, t, -0.05298924f);
    y = fmaf(y, t, 0.13324828f), y = fmaf(y, t, -0.33333072f);
    return fmaf(x * t, y, x);
  }
  // With one exponential. The absolute error is below 3e-7. The result is exact at infinity.
  static float large(float x) {
    constexpr float two_log2_e = 2.0f * 1.4426950408889634f;
    return 1.0f - __fdividef(2.0f, exp2_approx(x * two_log2_e) + 1.0f);
  }
};

// Computes tanh(factor * x) with TanhTerms. The relative error is below 8e-7.
struct SoftCap {
  const TanhTerms& tanh;  // in constant memory, so that the coefficients need no registers

  // Requires x^2 <= tanh.largest_square. one: 1 (RowSoftmax::exponentiate).
  float small(float x, float one = 1.0f) const {
    const float t = x * x;
    return x * fmaf(fmaf(fmaf(tanh.term[3] * one, t, tanh.term[2]), t, tanh.term[1]), t, tanh.term[0]);
  }
  float of(float x) const {
    const float with_terms = small(x), without = FastTanh::of(x * tanh.factor);
    return x * x <= tanh.largest_square ? with_terms : without;
  }
  // Returns whether small() suffices for all elements, except NaN, for which both are right.
  template <int m_tiles, int n_tiles>
  bool all_small(const float (&s)[m_tiles][n_tiles][4]) const {
    float most[4] = {};
#pragma unroll
    for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
      for (int n = 0; n < n_tiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) most[i] = fmaxf(most[i], fabsf(s[mt][n][i]));
    const float all = fmaxf(fmaxf(most[0], most[1]), fmaxf(most[2], most[3]));
    return all * all <= tanh.largest_square;
  }
};

// Computes tanh as exactly as f32 needs it.
struct ExactTanh {
  static float of(float x) { return tanhf(x); }
};

// The Steps of score_chain.h for one row of a head. Tanh: the implementation of tanh.
template <auto cfg, class Tanh>
struct RowScoreChain {
  const AttentionParams& p;
  index_t batch, head, row;
  float factor;      // softmax scale times descales
  float key_mean;    // scale * q . k_mean (smooth_k)
  index_t diagonal;  // i + off
  float slope = 0.0f;
  const char *bias = nullptr, *mask = nullptr;  // address of (batch, head, row, key 0)

  RowScoreChain(const AttentionParams& params, float scale, float mean, index_t offset, index_t b, index_t h, index_t i)
      : p(params), batch(b), head(h), row(i), factor(scale), key_mean(mean), diagonal(i + offset) {
    if constexpr (cfg.bias != DType::none)
      bias = static_cast<const char*>(p.bias.data) +
             bytes_of(cfg.bias) * (b * p.bias.batch + h * p.bias.head + i * p.bias.query);
    if constexpr (cfg.mask)
      mask = static_cast<const char*>(p.mask.data) + b * p.mask.batch + h * p.mask.head + i * p.mask.query;
    if constexpr (cfg.alibi) slope = p.alibi_slopes[b * p.alibi_batch + h * p.alibi_head];
  }

  void scale(float& x, index_t) const { x *= factor; }
  void add_key_mean(float& x, index_t) const {
    if constexpr (cfg.key_mean && cfg.softcap) x += key_mean;
  }
  void soft_cap(float& x, index_t) const {
    if constexpr (cfg.softcap) x = p.softcap * Tanh::of(x / p.softcap);
  }
  void add_bias(float& x, index_t j) const {
    if constexpr (cfg.bias != DType::none) x += load_element<cfg.bias>(bias, j * p.bias.key);
  }
  void subtract_alibi(float& x, index_t j) const {
    if constexpr (cfg.alibi) {
      const index_t distance = diagonal - j;
      x -= slope * static_cast<float>(distance < 0 ? -distance : distance);
    }
  }
  void apply_score_mod(float& x, [[maybe_unused]] index_t j) const { x = RAPT_USER_SCORE(x, batch, head, row, j); }
  void apply_mask(float& x, index_t j) const {
    if constexpr (cfg.mask) x = mask[j * p.mask.key] != 0 ? x : detail::float_of(0xff800000u);
  }

  // Returns the natural logit of key j from the product q.k, or -inf if the key is masked.
  float logit(float product, index_t j) const {
    apply_score_chain(*this, product, j);
    return product;
  }
};

}  // namespace rapt
