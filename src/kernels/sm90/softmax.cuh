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
// E4M3 weights must not exceed 448, and should use the range below. So row_max has the weight 2^log2_weight, and the
// largest weight of a block is compared, not the sum (limits_maximum). The rounding error of one E4M3 term is up to
// 1/16 of the weight. With ones_row, PV also sums the rounded weights, so most of this error cancels: a key with all
// the weight of its row has no error. The same holds for E4M3 weights: they are at most 2^8 (the largest E4M3 number is
// 448), and they use its range well. One E4M3 term is exact for a power of two. So then row_max is exactly the maximum:
// a key with all the weight of its row has no rounding error.
#pragma once

#include "device/score.cuh"
#include "device/softmax.cuh"
#include "row_tile.cuh"
#include "scores.cuh"

namespace rapt {

// Sums and maxima of a block's weights, over the columns of a thread.
template <const Sm90Config& cfg>
struct WeightTotals {
  static constexpr bool sums = !cfg.ones_row || cfg.exact_sums, maximum = cfg.p_terms > 0;
  float sum[2][2] = {};      // of even and odd columns of the two rows, because two sums hide latency
  unsigned largest[2] = {};  // bits of the largest weight; NaN counts as larger than all numbers

  // Adds the weights of columns 0 and 1 of a tile of eight columns.
  void add(const float (&weights)[4]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float x = weights[2 * half], y = weights[2 * half + 1];
      if constexpr (sums) sum[half][0] += x, sum[half][1] += y;
      if constexpr (maximum) largest[half] = max3(largest[half], detail::bits_of(x), detail::bits_of(y));
    }
  }
  // Returns a number that depends on the last added weights.
  float latest(int half, int column) const { return sums ? sum[half][column] : detail::float_of(largest[half]); }
  float of_row(int half) const { return sum[half][0] + sum[half][1]; }
};

template <const Sm90Config& cfg>
struct RowSoftmax {
  static constexpr bool maximum_first = cfg.bias != DType::none || cfg.alibi || (cfg.p_terms == 1 && !cfg.ones_row),
                        limits_maximum = cfg.p_terms > 0;
  // With maximum_first: row_max is raised if a score exceeds it by more than `threshold`, and the weight of row_max is
  // 2^log2_weight. Both are in log2 units.
  static constexpr float threshold = cfg.p_terms == 0                    ? OnlineSoftmax<1, false>::rescale_threshold
                                     : cfg.p_terms == 1 && !cfg.ones_row ? 0.0f
                                                                         : 2.0f;
  static constexpr float log2_weight = cfg.p_terms == 0 ? 0.0f : threshold == 0.0f ? 8.0f : 6.0f;
  using Rules = OnlineSoftmax<1, false>;
  static constexpr int group = 2;  // number of tiles of eight columns whose exponentials are computed together
  static constexpr float largest = limits_maximum ? 448.0f : 256.0f;  // of a thread's maximum or sum

  LogitScale<cfg> c;                                    // scale_log2: softmax scale * log2(e); at least 2^-100
  const AttentionParams& p;                             // read only for largest_correction()
  float row_max[2] = {minus_infinity, minus_infinity};  // unit: raw scores
  float row_sum[2] = {0.0f, 0.0f};                      // sums over this thread's columns
  // weight = exp2(s * c - shift). shift is row_max * c - log2_weight. If is_unsafe(), row_max is subtracted from s
  // before the product with c, and not in `shift`.
  float shift[2] = {-log2_weight, -log2_weight};
  float output_scale[2] = {1.0f, 1.0f};  // the factor for O after correct()
  bool is_steady = false;                // the pass is normal, and no row of the warp is unsafe

  // Replaces scores by weights. Returns whether correct() and a multiplication of O must follow. All threads of a warp
  // agree.
  template <int tiles>
  bool weigh(float (&s)[1][tiles][4], NanPass pass) {
    WeightTotals<cfg> totals;
    const auto unchanged = [](float x, float) { return x; };
    if constexpr (maximum_first) {
      const bool raises = raise_row_max(s, pass);
      exponentiate(s, totals, unchanged);
      add_finite(s, totals);
      return raises;
    } else {
      const bool begins = !is_steady;
      if (begins) begin_rows(s, pass);
      exponentiate(s, totals, unchanged);
      return add(totals, begins && pass != NanPass::normal);
    }
  }

  // The same, in the steady state, for scores with a soft cap that SoftCap::small() can compute. Computing the cap here
  // overlaps it with the exponentials.
  template <int tiles>
  bool weigh_capped(float (&s)[1][tiles][4], const SoftCap& cap) {
    WeightTotals<cfg> totals;
    exponentiate(s, totals, [&](float x, float one) { return cap.small(x, one); });
    return add(totals, false);
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

  // Returns this thread's part of the sum of the weights that PV has used. With ones_row, this is a column of the
  // output.
  template <int tiles>
  float sum_of_pv(const float (&o)[1][tiles][4], int half) const {
    return cfg.ones_row ? o[0][tiles - 1][2 * half] : row_sum[half];
  }

 private:
  // Adds a block's totals. Returns whether `corrects` holds for a thread of the warp, or a weight is too large.
  bool add(const WeightTotals<cfg>& totals, bool corrects) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if constexpr (WeightTotals<cfg>::sums) row_sum[half] += totals.of_row(half);
      corrects = corrects | !(limits_maximum ? totals.largest[half] <= detail::bits_of(largest)
                                             : totals.of_row(half) <= largest);  // also true for NaN
    }
    return __any_sync(~0u, corrects);
  }
  // For maximum_first: adds a block's totals. If a row has a score that is infinite or NaN, its weights become NaN.
  template <int tiles>
  void add_finite(float (&s)[1][tiles][4], const WeightTotals<cfg>& totals) {
    bool too_large = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      row_sum[half] += totals.of_row(half);
      too_large = too_large | !(totals.of_row(half) <= largest_finite);
    }
    if (__any_sync(~0u, too_large)) spoil(s);
  }
  // Replaces scores by weights, and adds them to `totals`. change(x, one): an operation on each score before the
  // softmax. `one` is 1, but ptxas does not know this: an operation that uses it begins at most two groups before its
  // exponential. The same holds for the arguments of the exponentials.
  template <int tiles, class Change>
  void exponentiate(float (&s)[1][tiles][4], WeightTotals<cfg>& totals, const Change& change) const {
    float at[2][2] = {{shift[0], shift[1]}, {shift[0], shift[1]}}, one[2] = {1.0f, 1.0f};
#pragma unroll
    for (int n = 0; n < tiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        s[0][n][i] = exp2_approx(fmaf(change(s[0][n][i], one[n / group % 2]), c.of(i / 2), -at[n / group % 2][i / 2]));
      totals.add(s[0][n]);
      if (n % group == group - 1) {
#pragma unroll
        for (int half = 0; half < 2; ++half)
          at[n / group % 2][half] = after(at[n / group % 2][half], totals.latest(half, n / group / 2 % 2));
        one[n / group % 2] = after(one[n / group % 2], totals.latest(0, n / group / 2 % 2));
      }
    }
  }
  template <int tiles>
  void correct_row(float (&s)[1][tiles][4], int half) {
    if (is_steady) output_scale[half] = 1.0f;
    const float top = quad_max(max_of(s, half)), to = corrected(half, top),
                compared = limits_maximum ? top : quad_max(block_sum(s, half)), nan = detail::float_of(0x7fffffffu);
    const bool moves = compared > largest & to <= largest_finite, fails = !(compared <= largest | moves);
    if (fails) row_sum[half] = nan;
    const float factor = moves ? move(half, to) : cfg.ones_row & fails ? nan : 1.0f;
    output_scale[half] *= factor;
#pragma unroll
    for (int n = 0; n < tiles; ++n) s[0][n][2 * half] *= factor, s[0][n][2 * half + 1] *= factor;
  }

  // Sets row_max of rows that see their first key. In passes other than the normal one, also raises row_max if a weight
  // would be too large to correct. The counting pass gives weight 1 to each visible key.
  template <int tiles>
  void begin_rows(float (&s)[1][tiles][4], NanPass pass) {
    float first[2];
    first_row_max(s, first);
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
      if (pass == NanPass::normal) continue;
      const float top = quad_max(max_of(s, half));
      // The weight is computed with the same operations as in weigh(). So this pass raises row_max exactly for the rows
      // that the normal pass could not correct.
      const float x = is_unsafe(half) & row_max[half] != minus_infinity ? top - row_max[half] : top,
                  weight = exp2_approx(fmaf(x, c.of(half), -shift[half]));
      if (weight > largest & !(corrected(half, weight) <= largest_finite)) output_scale[half] = move(half, top);
    }
    const bool any_unsafe = __any_sync(~0u, is_unsafe(0) | is_unsafe(1));
    is_steady = pass == NanPass::normal & !any_unsafe;
    if (any_unsafe && pass != NanPass::count_non_finite) subtract_row_max(s);
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
  // Returns the row_max with which this weight becomes 2^log2_weight. The result is not finite if the weight is too
  // large to be corrected.
  float corrected(int half, float weight) const {
    return row_max[half] +
           __fdividef(log2_approx(weight) - log2_weight, weight <= largest_correction() ? c.of(half) : 0.0f);
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
