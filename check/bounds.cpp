// The bounds of bounds.h.
#include "bounds.h"

#include <algorithm>
#include <cmath>

#include "format.h"

namespace rapt::check {
namespace {

const double u32 = unit_roundoff(DType::f32);

}  // namespace

void Condition::add(const Reference& ref) {
  for (int64_t row = 0; row < ref.rows; ++row) {
    ordinary_logits = ordinary_logits && ref.logit_size[row] <= 256;
    for (int64_t n = row * ref.head_dim_v; n < (row + 1) * ref.head_dim_v; ++n) {
      const double slack = ref.logit_size[row] * ref.spread_v[n] + 4 * ref.weighted_v[n];
      if (!std::isfinite(slack) || !std::isfinite(ref.out[n])) continue;
      largest_slack = std::max(largest_slack, slack);
      weighted_square += ref.weighted_v[n] * ref.weighted_v[n];
      output_square += ref.out[n] * ref.out[n];
    }
  }
}

DType probability_format(const Problem& p) {
  if (is_16bit(p.v)) return p.v;
  return p.partial ? DType::f32 : p.out;
}

Bounds output_bounds(const Problem& p, Fill fill, const Errors& plain, const Condition& condition) {
  const DType out = p.partial ? DType::f32 : p.out;
  const double u = std::max(unit_roundoff(out), unit_roundoff(probability_format(p)));
  // acc=f16: scores and the output of a tile of keys carry a few roundings to f16 each, whatever their number.
  if (p.acc == AccMode::f16) return {2 * plain.max_abs + 8 * u * plain.max_reference, 1.1 * plain.rel_rms + 4 * u};
  if (u > u32) return {2 * plain.max_abs + u * plain.max_reference, 1.1 * plain.rel_rms + u / 4};
  const double max_abs = 2 * plain.max_abs + 2 * u32 * condition.largest_slack;
  if ((fill == Fill::normal || fill == Fill::outlier) && p.seqlen_k <= 4096 && condition.ordinary_logits)
    return {max_abs, 1e-6};
  // Outputs that are all 0 have no relative error: then max_abs alone judges.
  if (condition.output_square == 0) return {max_abs, INFINITY};
  return {max_abs, 2 * plain.rel_rms + 4 * u32 * std::sqrt(condition.weighted_square / condition.output_square)};
}

double lse_bound(const Problem& p, double logit_size, double lse) {
  const double dot = (4 + std::sqrt(static_cast<double>(p.head_dim))) * logit_size;
  const double sum = 8 + std::sqrt(static_cast<double>(p.seqlen_k));
  const double u = p.acc == AccMode::f16 ? unit_roundoff(DType::f16) : u32;
  return u * dot + u32 * (sum + 2 * std::fabs(lse));
}

}  // namespace rapt::check
