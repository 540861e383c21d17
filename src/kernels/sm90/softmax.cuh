// Online softmax of attention_sm90. A thread holds parts of two rows, as wgmma accumulators do. It computes the weights
// of a block before it looks for a new maximum, so most blocks need no pass over their scores. PV of the previous block
// is still running at that time, so the softmax does not multiply O: the caller does this, with output_scale. Device
// only.
//
// row_sum = sum of exp2((s - row_max) * c). row_max need not be the maximum: its factor cancels in O / row_sum. But no
// weight may overflow, and at least one weight must stay above 0. At first, row_max is the maximum of 16 scores of the
// row's first visible block. If the weights of a thread in a block have a sum above 2^8, correct() raises row_max so
// that the largest weight becomes 1. Each row decides alone, so its bits do not depend on other rows.
//
// A weight above largest_correction() cannot be corrected without the scores. So the row gets NaN as its sum, and its
// tile is computed again like a tile with hidden NaN (NanPass). In that pass, row_max of such a row is raised before
// the weights are computed. The limit is 2^100, so that this is rare. If the call asks for lse, it is 2^24: the
// exponent of a larger weight is rounded so much that lse could miss its error bound.
//
// With bias or ALiBi, scores of one row often differ by more than that: the first block can have a bias of -10000, or
// can be far from the diagonal. Then almost every tile would be computed again. So with them, each block's maximum is
// compared with row_max before the weights are computed (maximum_first), as in attention_sm80. No weight exceeds 2^8.
//
// FP8 weights must not exceed 448, the largest E4M3 number, but should use the range below. So row_max has the weight
// 2^log2_weight, sums of up to 448 are allowed, and correct() makes the largest weight of a row a power of two, which
// E4M3 represents exactly. In the first block, and in all blocks of a tile with few keys, row_max is exactly the
// maximum: the rounding error of the largest weight (up to 1/16 of it) matters most if a row has few keys.
#pragma once

#include "device/score.cuh"
#include "device/softmax.cuh"
#include "row_tile.cuh"
#include "scores.cuh"

namespace rapt {

template <const Sm90Config& cfg>
struct RowSoftmax {
  static constexpr bool maximum_first = cfg.bias != DType::none || cfg.alibi, fp8_weights = cfg.p_terms > 0;
  // With maximum_first: row_max is raised if a score exceeds it by more than `threshold`, in log2 units.
  static constexpr float threshold = cfg.p_terms == 0   ? OnlineSoftmax<1, false>::rescale_threshold
                                     : cfg.p_terms == 1 ? 0.0f
                                                        : 2.0f;
  static constexpr float log2_weight = !fp8_weights ? 0.0f : maximum_first && cfg.p_terms == 1 ? 8.0f : 6.0f;
  using Rules = OnlineSoftmax<1, false>;
  static constexpr int group = 2;  // number of tiles of eight columns whose exponentials are computed together
  static constexpr float largest_sum = fp8_weights ? 448.0f : 256.0f;

  LogitScale<cfg> c;                                    // scale_log2: softmax scale * log2(e); at least 2^-100
  const AttentionParams& p;                             // read only for largest_correction()
  float row_max[2] = {minus_infinity, minus_infinity};  // unit: raw scores
  float row_sum[2] = {0.0f, 0.0f};                      // sums over this thread's columns
  // weight = exp2(s * c - shift). shift is row_max * c - log2_weight. If is_unsafe(), row_max is subtracted from s
  // before the product with c, and not in `shift`.
  float shift[2] = {-log2_weight, -log2_weight};
  float output_scale[2] = {1.0f, 1.0f};  // the factor for O after correct()
  bool is_steady = false;                // the pass is normal, and no row of the warp is unsafe
  int exact_blocks = 0;                  // number of blocks in which row_max is still exactly the maximum

  // keys: the largest number of keys of a row, rounded up to whole blocks.
  void begin_tile(int keys) {
    constexpr int few_keys = 512;
    if constexpr (cfg.p_terms == 1) exact_blocks = keys <= few_keys ? keys / cfg.block_n : 1;
  }

  // Replaces scores by weights. Returns whether correct() and a multiplication of O must follow. All threads of a warp
  // agree.
  template <int tiles>
  bool weigh(float (&s)[1][tiles][4], NanPass pass) {
    bool corrects = false, too_large = false;
    if constexpr (maximum_first)
      corrects = raise_row_max(s, pass);
    else if (!is_steady)
      corrects = begin_rows(s, pass);
    float sum[2][2] = {};  // as in block_sum()
    exponentiate(s, sum, [](float x, float) { return x; });
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float all = sum[half][0] + sum[half][1];
      row_sum[half] += all;
      if constexpr (maximum_first)
        too_large = too_large | !(all <= largest_finite);  // the row has a score that is infinite or NaN
      else
        corrects = corrects | !(all <= largest_sum);  // also true for NaN
    }
    if constexpr (maximum_first) {
      if (__any_sync(~0u, too_large)) spoil(s);
      return corrects;
    }
    return __any_sync(~0u, corrects);
  }

  // The same, in the steady state, for scores with a soft cap that SoftCap::small() can compute. Computing the cap here
  // overlaps it with the exponentials.
  template <int tiles>
  bool weigh_capped(float (&s)[1][tiles][4], const SoftCap& cap) {
    float sum[2][2] = {};
    exponentiate(s, sum, [&](float x, float one) { return cap.small(x, one); });
    bool corrects = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float all = sum[half][0] + sum[half][1];
      row_sum[half] += all;
      corrects = corrects | !(all <= largest_sum);
    }
    return __any_sync(~0u, corrects);
  }

  // If the weights of a row are too large, scales the row's weights and row_sum. The caller multiplies O by
  // output_scale. With maximum_first no weight is too large.
  template <int tiles>
  void correct(float (&s)[1][tiles][4]) {
    if constexpr (!maximum_first) {
#pragma unroll
      for (int half = 0; half < 2; ++half) correct_row(s, half);
      is_steady = is_steady & !__any_sync(~0u, is_unsafe(0) | is_unsafe(1));
    }
  }

 private:
  // Replaces scores by weights, and adds them to `sum`. change(x, one): an operation on each score before the
  // softmax. `one` is 1, but ptxas does not know this: an operation that uses it begins at most two groups before its
  // exponential. The same holds for the arguments of the exponentials.
  template <int tiles, class Change>
  void exponentiate(float (&s)[1][tiles][4], float (&sum)[2][2], const Change& change) const {
    float at[2][2] = {{shift[0], shift[1]}, {shift[0], shift[1]}}, one[2] = {1.0f, 1.0f};
#pragma unroll
    for (int n = 0; n < tiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[0][n][i] = exp2_approx(fmaf(change(s[0][n][i], one[n / group % 2]), c.of(i / 2), -at[n / group % 2][i / 2]));
        sum[i / 2][i % 2] += s[0][n][i];
      }
      if (n % group == group - 1) {
#pragma unroll
        for (int half = 0; half < 2; ++half)
          at[n / group % 2][half] = after(at[n / group % 2][half], sum[half][n / group / 2 % 2]);
        one[n / group % 2] = after(one[n / group % 2], sum[0][n / group / 2 % 2]);
      }
    }
  }
  template <int tiles>
  void correct_row(float (&s)[1][tiles][4], int half) {
    if (is_steady) output_scale[half] = 1.0f;
    const float top = quad_max(max_of(s, half)), sum = quad_max(block_sum(s, half)), to = corrected(half, top, sum);
    const bool moves = sum > largest_sum & to <= largest_finite;
    if (!(sum <= largest_sum | moves)) row_sum[half] = detail::float_of(0x7fffffffu);
    const float factor = moves ? move(half, to) : 1.0f;
    output_scale[half] *= factor;
#pragma unroll
    for (int n = 0; n < tiles; ++n) s[0][n][2 * half] *= factor, s[0][n][2 * half + 1] *= factor;
  }

  // Sets row_max of rows that see their first key, and in the first blocks of FP8 weights also of rows with a new
  // maximum. In passes other than the normal one, also raises row_max if a weight would be too large to correct. The
  // counting pass gives the same weight to each visible key. Returns whether O must be multiplied by output_scale.
  template <int tiles>
  bool begin_rows(float (&s)[1][tiles][4], NanPass pass) {
    const bool follows_maximum = exact_blocks > 0;
    bool corrects = pass != NanPass::normal;
    float first[2] = {minus_infinity, minus_infinity};
    if (!follows_maximum) first_row_max(s, first);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      output_scale[half] = 1.0f;
      if (pass == NanPass::count_non_finite) {
        set_row_max(half, 0.0f);
#pragma unroll
        for (int n = 0; n < tiles; ++n)
#pragma unroll
          for (int i = 2 * half; i < 2 * half + 2; ++i) s[0][n][i] = s[0][n][i] == minus_infinity ? s[0][n][i] : 0.0f;
        continue;
      }
      if (row_max[half] == minus_infinity) set_row_max(half, first[half]);
      if (pass == NanPass::normal && !follows_maximum) continue;
      const float top = quad_max(max_of(s, half));
      if (follows_maximum & top > row_max[half]) output_scale[half] = move(half, top), corrects = true;
      if (pass == NanPass::normal) continue;
      // The weight is computed with the same operations as in weigh(). So this pass raises row_max exactly for the rows
      // that the normal pass could not correct.
      const float x = is_unsafe(half) & row_max[half] != minus_infinity ? top - row_max[half] : top,
                  weight = exp2_approx(fmaf(x, c.of(half), -shift[half]));
      if (weight > largest_sum & !(corrected(half, weight, weight) <= largest_finite))
        output_scale[half] = move(half, top);
    }
    if constexpr (cfg.p_terms == 1) --exact_blocks;
    const bool any_unsafe = __any_sync(~0u, is_unsafe(0) | is_unsafe(1));
    is_steady = pass == NanPass::normal & !any_unsafe & !follows_maximum;  // output_scale is 1 then
    if (any_unsafe && pass != NanPass::count_non_finite) subtract_row_max(s);
    return corrects;
  }
  // For maximum_first: if the sum of a row is not finite, its weights become NaN. Its result is NaN anyway. But ptxas
  // computes the exponentials before this branch. Without the branch, it computes them after the caller has waited for
  // PV.
  template <int tiles>
  void spoil(float (&s)[1][tiles][4]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float zero_or_nan = row_sum[half] - row_sum[half];
#pragma unroll
      for (int n = 0; n < tiles; ++n) s[0][n][2 * half] += zero_or_nan, s[0][n][2 * half + 1] += zero_or_nan;
    }
  }

  // For maximum_first: raises row_max of the rows whose block has a much larger score. Returns whether a row of the
  // warp has a new row_max.
  template <int tiles>
  bool raise_row_max(float (&s)[1][tiles][4], NanPass pass) {
    if (pass == NanPass::count_non_finite) {
      begin_rows(s, pass);
      return false;
    }
    float top[2];
    bool raises = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      top[half] = max_of(s, half);
      raises = raises | exceeds(top[half], half);
    }
    raises = __any_sync(~0u, raises);
    if (raises) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float maximum = quad_max(top[half]);
        output_scale[half] = exceeds(maximum, half) ? move(half, maximum) : 1.0f;
      }
      is_steady = !__any_sync(~0u, is_unsafe(0) | is_unsafe(1));
    }
    if (!is_steady) subtract_row_max(s);
    return raises;
  }
  template <int tiles>
  void subtract_row_max(float (&s)[1][tiles][4]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float subtracted = is_unsafe(half) & row_max[half] != minus_infinity ? row_max[half] : 0.0f;
#pragma unroll
      for (int n = 0; n < tiles; ++n) s[0][n][2 * half] -= subtracted, s[0][n][2 * half + 1] -= subtracted;
    }
  }

  // Returns the row_max of a row that has none: the maximum of the first 16 scores, or of all if these are masked.
  template <int tiles>
  static void first_row_max(const float (&s)[1][tiles][4], float (&first)[2]) {
    bool masked = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float x = fmaxf(s[0][0][2 * half], s[0][0][2 * half + 1]);
      first[half] = quad_max(fmaxf(x, fmaxf(s[0][1][2 * half], s[0][1][2 * half + 1])));
      masked = masked | first[half] == minus_infinity;
    }
    if (!__any_sync(~0u, masked)) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float top = quad_max(max_of(s, half));
      if (first[half] == minus_infinity) first[half] = top;
    }
  }

  // Returns x, but makes the result depend on y. Otherwise ptxas computes all arguments of exponentials first, while
  // the unit for exponentials is idle. x does not change because c is positive, but the compiler does not know this.
  float after(float x, float y) const {
    return detail::float_of(detail::bits_of(x) | (detail::bits_of(y) & detail::bits_of(c.of(0)) >> 31));
  }

  float largest_correction() const { return p.lse.present() ? 0x1p24f : 0x1p100f; }
  // Returns the row_max with which `weight`, the largest one, becomes 1, or an FP8 weight becomes the largest power of
  // two that leaves the sum at most 256. The result is not finite if the weight is too large to be corrected.
  float corrected(int half, float weight, float sum) const {
    float log2_change = log2_approx(weight);
    if constexpr (fp8_weights) {
      const unsigned bits = detail::bits_of(__fdividef(256.0f * weight, sum));
      log2_change -= static_cast<float>(static_cast<int>(bits >> 23) - 127);
    }
    return row_max[half] + __fdividef(log2_change, weight <= largest_correction() ? c.of(half) : 0.0f);
  }
  // Returns whether row_max must be subtracted from a score before the product with c. This is also true for a row
  // without a row_max.
  bool is_unsafe(int half) const { return Rules::needs_safe_exp(row_max[half], c.of(half)); }
  // Returns whether row_max must be raised for a score.
  bool exceeds(float score, int half) const { return (score - row_max[half]) * c.of(half) > threshold; }
  template <int tiles>
  static float max_of(const float (&s)[1][tiles][4], int half) {
    float x = fmaxf(s[0][0][2 * half], s[0][0][2 * half + 1]);
#pragma unroll
    for (int n = 1; n < tiles; ++n) x = fmaxf(x, fmaxf(s[0][n][2 * half], s[0][n][2 * half + 1]));
    return x;
  }
  // Returns the sum of this thread's weights, with the same order of additions as in weigh(): one sum of the even
  // columns and one of the odd columns, because two sums hide latency.
  template <int tiles>
  static float block_sum(const float (&s)[1][tiles][4], int half) {
    float even = 0.0f, odd = 0.0f;
#pragma unroll
    for (int n = 0; n < tiles; ++n) even += s[0][n][2 * half], odd += s[0][n][2 * half + 1];
    return even + odd;
  }
  void set_row_max(int half, float to) {
    row_max[half] = to;
    shift[half] = (is_unsafe(half) ? 0.0f : __fmul_rn(to, c.of(half))) - log2_weight;
  }
  // Changes row_max. Returns the factor by which earlier results must be multiplied.
  float move(int half, float to) {
    const float factor = Rules::rescale_factor(row_max[half], to, c.of(half));
    set_row_max(half, to);
    row_sum[half] *= factor;
    return factor;
  }
};

}  // namespace rapt
