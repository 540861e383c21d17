// Implements bounds.h.
#include "bounds.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "format.h"

namespace rapt::check {
namespace {

// The unit roundoff of f32 (2^-24). (The name does not mean an integer type.)
const double u32 = unit_roundoff(DType::f32);

}  // namespace

void Condition::add(const Reference& ref) {
  for (int64_t row = 0; row < ref.rows; ++row) {
    ordinary_logits = ordinary_logits && ref.logit_size[row] <= 256;
    for (int64_t n = row * ref.head_dim_v; n < (row + 1) * ref.head_dim_v; ++n) {
      const double slack = ref.logit_size[row] * ref.spread_v[n] + 4 * ref.weighted_v[n];
      if (!std::isfinite(slack) || !std::isfinite(ref.out[n])) continue;
      largest_slack = std::max(largest_slack, slack);
      largest_weighted = std::max(largest_weighted, ref.weighted_v[n]);
      weighted_square += ref.weighted_v[n] * ref.weighted_v[n];
      if (!ref.scatter_v.empty()) {
        const double scatter = ref.logit_size[row] * ref.logit_size[row] * ref.scatter_v[n];
        scatter_square += scatter, largest_scatter = std::max(largest_scatter, scatter);
      }
      output_square += ref.out[n] * ref.out[n];
      if (ref.square_v.empty()) continue;
      rounding_square += ref.square_v[n];
      rounding_floor += ref.floor_v[n];
      largest_square = std::max(largest_square, ref.square_v[n]);
      largest_floor = std::max(largest_floor, ref.floor_v[n]);
    }
    if (!ref.quartic_v.empty() && std::isfinite(ref.quartic_v[row])) rounding_quartic += ref.quartic_v[row];
  }
}

namespace {

// How much the outputs change if the weights are rounded to E4M3 with independent rounding errors. We assume
// independence if the logits of a row are spread over about 1 or more.
// A weight is m * 2^e with 1 <= m < 2. Its relative error is uniform in +-2^-4 / m. If log(m) is uniform, the rms of
// the relative error is sqrt(0.541 / 3) * 2^-4 = 2.65e-2. A second E4M3 term rounds the error of the first term, so
// this factor applies twice.
// Weights are stored times 256, so E4M3's subnormals begin below the weight 2^-14. They are 2^-17 apart. There the
// error is at most 2^-18, and its rms is 2^-18 / sqrt(3). A weight below 2^-18 can become 0.
struct WeightRounding {
  // relative_rms, relative_worst: rms and largest size of the error, divided by the weight. spread: Var(e^2) /
  // (E[e^2])^2 for the error e.
  double relative_rms, relative_worst, spread;
};
constexpr WeightRounding one_term{2.65e-2, 0x1p-4, 1.1}, two_terms{2.65e-2 * 2.65e-2, 0x1p-8, 3.3};

// Some fills have independent rounding errors (`scattered`). For them the squares of the keys' errors add. The bound
// max_abs is 4 times the largest standard deviation of any output. The bound for the pooled squared error is its mean
// plus 4 of its standard deviations.
// In the other fills many weights of a row are equal, so their errors are equal, too. For them the bound assumes that
// every weight has the largest error, with the same sign.
Bounds rounding_of(const Problem& p, Fill fill, const Condition& c) {
  const WeightRounding& e = p.pv == PvMode::fp8 ? one_term : two_terms;
  // square: sum of (p v)^2. floor: the same sum for E4M3's subnormal rounding errors (not std::floor).
  const auto variance = [&](double square, double floor) {
    return e.relative_rms * e.relative_rms * square + floor / 3;
  };
  const bool scattered = fill != Fill::constant && fill != Fill::near_ties && fill != Fill::integers &&
                         fill != Fill::rescale && fill != Fill::rescale_reversed && fill != Fill::huge;
  if (c.output_square == 0) return {0, 0};
  if (scattered) {
    const double deviation = c.rounding_square > 0 ? std::sqrt(e.spread * c.rounding_quartic) / c.rounding_square : 0;
    const double square = variance(c.rounding_square, c.rounding_floor) * (1 + 4 * deviation);
    return {4 * std::sqrt(variance(c.largest_square, c.largest_floor)), std::sqrt(square / c.output_square)};
  }
  const auto keys = static_cast<double>(p.seqlen_k);
  const double worst = e.relative_worst * std::sqrt(c.weighted_square) + std::sqrt(keys * c.rounding_floor);
  return {e.relative_worst * c.largest_weighted + std::sqrt(keys * c.largest_floor),
          worst / std::sqrt(c.output_square)};
}

// plain: the errors of the unfused implementation, plain(). `own` below is the unit roundoff of the accumulation.
Bounds fp8_bounds(const Problem& p, Fill fill, const Errors& plain, const Condition& c) {
  const double u = unit_roundoff(p.partial ? DType::f32 : p.out);
  const double own = p.acc == AccMode::f32 ? u32 : unit_roundoff(DType::f16);
  const Bounds rounding = rounding_of(p, fill, c);
  const double max_abs = std::max(2 * plain.max_abs, rounding.max_abs) + u * plain.max_reference;
  const double ratio = c.output_square > 0 ? std::sqrt(c.weighted_square / c.output_square) : INFINITY;
  return {max_abs + 2 * own * c.largest_slack,
          1.1 * std::max(plain.rel_rms, rounding.rel_rms) + u / 4 + 4 * own * ratio};
}

Bounds without_requirements(const Problem& p, Fill fill, const Errors& plain, const Condition& condition,
                            DType fp8_weights) {
  if (p.pv == PvMode::fp8 || p.pv == PvMode::fp8x2) return fp8_bounds(p, fill, plain, condition);
  const DType out = p.partial ? DType::f32 : p.out;
  const double u = std::max(unit_roundoff(out), unit_roundoff(probability_format(p, fp8_weights)));
  // With acc=f16, scores are rounded to f16 a few times, and so is the output of each tile of keys. The number of these
  // roundings does not depend on the number of tiles.
  // With acc=tf32, q, k, v and P are rounded to TF32, which has the roundoff of f16: four roundings, too.
  if (p.acc != AccMode::f32) {
    const double low = std::max(u, unit_roundoff(DType::f16));
    return {2 * plain.max_abs + 8 * low * plain.max_reference, 1.1 * plain.rel_rms + 4 * low};
  }
  if (u > u32) return {2 * plain.max_abs + u * plain.max_reference, 1.1 * plain.rel_rms + u / 4};
  const double max_abs = 2 * plain.max_abs + 2 * u32 * condition.largest_slack;
  if ((fill == Fill::normal || fill == Fill::outlier) && p.seqlen_k <= 4096 && condition.ordinary_logits)
    return {max_abs, 1e-6};
  // If all outputs are 0, there is no relative error, and only max_abs counts.
  if (condition.output_square == 0) return {max_abs, INFINITY};
  return {max_abs, 2 * plain.rel_rms + 4 * u32 * std::sqrt(condition.weighted_square / condition.output_square)};
}

// True for the four shapes of the first experiments, without other inputs than q, k and v.
bool is_seed_shape(const Problem& p) {
  Problem bare;
  bare.q = p.q, bare.k = p.k, bare.v = p.v, bare.out = p.out;
  bare.head_dim = bare.head_dim_v = 64;
  bare.pv = p.pv, bare.lse = p.lse, bare.partial = p.partial;
  bare.q_scales = p.q_scales, bare.k_scales = p.k_scales, bare.v_scales = p.v_scales;
  bare.smooth_k = p.smooth_k, bare.hadamard = p.hadamard, bare.layout = p.layout;
  bare.access_q = p.access_q, bare.access_k = p.access_k, bare.access_v = p.access_v, bare.access_out = p.access_out;
  constexpr std::array<std::array<int64_t, 3>, 4> shapes = {{{1, 2, 64}, {1, 4, 128}, {1, 8, 512}, {2, 2, 64}}};
  return std::any_of(shapes.begin(), shapes.end(), [&](const auto& shape) {
    bare.batch = shape[0], bare.heads_q = bare.heads_k = shape[1], bare.seqlen_q = bare.seqlen_k = shape[2];
    return same_plan(bare, p);
  });
}

}  // namespace

DType probability_format(const Problem& p, DType fp8_weights) {
  if (is_16bit(p.v)) return p.v;
  const DType out = p.partial ? DType::f32 : p.out;
  if (!is_fp8(p.v)) return out;
  return out == DType::f32 ? fp8_weights : DType::f16;
}

Bounds required_bounds(const Problem& p, Fill fill, double max_reference) {
  if (!is_fp8(p.v) || fill != Fill::normal || p.acc != AccMode::f32 || !is_seed_shape(p))
    return {INFINITY, INFINITY, INFINITY};
  if (p.heads_q != 8) return {0.06, INFINITY, INFINITY};
  const bool bf16 = p.out == DType::bf16 && !p.partial;
  const double rounding = bf16 ? unit_roundoff(DType::bf16) * max_reference : 0;
  switch (p.pv) {
    case PvMode::fp8: return {1.2e-2 + rounding, 2.8e-2, 1.7e-3};
    case PvMode::fp8x2: return {1e-3 + rounding, INFINITY, 5e-4};
    default: return {5e-4 + rounding, bf16 ? 4e-3 : 1e-3, 5e-4};
  }
}

double pooled_max_bound(PvMode pv, int64_t runs) {
  switch (pv) {
    case PvMode::fp8: return 1.55e-2 + 3.2e-3 * std::log10(static_cast<double>(runs));
    case PvMode::fp8x2: return 1e-3;
    default: return 5e-4;
  }
}

// Adds the effect of narrow sums of FP8 products q.k. An instruction cuts 32 products and the sum to 13 bits below the
// largest of them. Each cut has an error of up to 2^-13 of the largest, which is about L / 8 for N(0, 1) inputs; with
// two to eight instructions the standard deviation of a logit's error is about 0.3 to 0.6 times 2^-13 L. The bound uses
// 0.5.
Bounds narrow_logits(Bounds bounds, const Condition& c) {
  constexpr double error = 0x1p-14;
  if (c.output_square == 0) return bounds;
  return {bounds.max_abs + 4 * error * std::sqrt(c.largest_scatter),
          bounds.rel_rms + error * std::sqrt(c.scatter_square / c.output_square), bounds.mean_abs};
}

Bounds output_bounds(const Problem& p, Fill fill, const Errors& plain, const Condition& condition, DType fp8_weights,
                     bool narrow_products) {
  Bounds derived = without_requirements(p, fill, plain, condition, fp8_weights);
  if (narrow_products) derived = narrow_logits(derived, condition);
  const Bounds required = required_bounds(p, fill, plain.max_reference);
  return {std::min(derived.max_abs, required.max_abs), std::min(derived.rel_rms, required.rel_rms),
          std::min(derived.mean_abs, required.mean_abs)};
}

double lse_bound(const Problem& p, double logit_size, double lse, bool narrow_products) {
  const double dot = (4 + std::sqrt(static_cast<double>(p.head_dim))) * logit_size;
  const double sum = 8 + std::sqrt(static_cast<double>(p.seqlen_k));
  const bool narrow = narrow_products && is_tensor_core_fp8(p.q) && is_tensor_core_fp8(p.k);
  const double u = narrow ? 0x1p-13 : p.acc == AccMode::f32 ? u32 : unit_roundoff(DType::f16);
  return u * dot + u32 * (sum + 2 * std::fabs(lse));
}

}  // namespace rapt::check
