// Compares the rows of a reference with an output tensor and sums the errors.
#include "compare.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "bounds.h"
#include "format.h"
#include "poison.h"

namespace rapt::check {
namespace {

int64_t rows_per_head(const Problem& p) { return std::max<int64_t>(1, p.varlen ? p.total_q : p.seqlen_q); }

// Offset of the row's first element in out (dim = head_dim_v) or in lse (dim = 1).
int64_t row_offset(const Problem& p, const HostTensor& tensor, int64_t row, bool is_lse) {
  const std::vector<int64_t> at = row_coordinates(p, row);
  const auto& st = tensor.strides;
  if (!p.varlen) return at[0] * st[0] + at[1] * st[1] + at[2] * st[2];
  return is_lse ? at[1] * st[0] + at[0] * st[1] : at[0] * st[0] + at[1] * st[1];
}

bool same_class(double got, double want, bool exact_infinity) {
  if (exact_infinity && std::isinf(want) && want < 0) return got == want;
  return std::isfinite(got) == std::isfinite(want);
}

void note_worst(Errors& e, int64_t element, double got, double want) {
  e.worst = element;
  e.worst_got = got;
  e.worst_want = want;
}

void add_element(Errors& e, int64_t element, double got, double want, bool exact_infinity) {
  ++e.count;
  e.nan_count += std::isnan(got);
  e.inf_count += std::isinf(got);
  if (!same_class(got, want, exact_infinity)) {
    if (e.wrong_class++ == 0) note_worst(e, element, got, want);
    return;
  }
  if (!std::isfinite(want)) return;
  const double error = std::fabs(got - want);
  if (error > e.max_abs) {
    e.max_abs = error;
    if (e.wrong_class == 0) note_worst(e, element, got, want);
  }
  e.max_reference = std::max(e.max_reference, std::fabs(want));
  e.sum_abs += error;
  e.sum_square += error * error;
  e.sum_reference_square += want * want;
  e.sum_output_square += got * got;
  e.sum_product += got * want;
}

void finish(Errors& e) {
  e.mean_abs = e.count ? e.sum_abs / static_cast<double>(e.count) : 0.0;
  // If the reference is all zeros, rel_rms of any error is infinite.
  if (e.sum_square == 0)
    e.rel_rms = 0;
  else
    e.rel_rms = std::sqrt(e.sum_square / e.sum_reference_square);
  const double norms = std::sqrt(e.sum_reference_square) * std::sqrt(e.sum_output_square);
  e.cosine = norms > 0 ? e.sum_product / norms : 1.0;
}

Errors compare(const Problem& p, const HostTensor& tensor, const Reference& ref, bool is_lse) {
  const int64_t dim = is_lse ? 1 : ref.head_dim_v;
  const int64_t step = is_lse || tensor.strides.empty() ? 0 : tensor.strides.back();
  const double limit = largest_finite(tensor.dtype) * (1 + unit_roundoff(tensor.dtype) / 2);
  const std::vector<double>& values = is_lse ? ref.lse : ref.out;
  Errors e;
  e.overwritten = broken_canaries(tensor);
  for (int64_t row = 0; row < ref.rows; ++row) {
    const int64_t base = row_offset(p, tensor, row, is_lse);
    for (int64_t d = 0; d < dim; ++d) {
      const int64_t at = base + d * step;
      const bool poison = is_poison(tensor, at);
      if (ref.state[row] == RowState::untouched) {
        e.overwritten += !poison;
      } else if (poison) {
        if (e.unwritten++ == 0)
          note_worst(e, row * dim + d, decode_element(tensor.dtype, tensor.data(), at), values[row * dim + d]);
      } else if (ref.state[row] == RowState::computed) {
        double want = values[row * dim + d];
        if (std::fabs(want) > limit) want = std::copysign(INFINITY, want);
        add_element(e, row * dim + d, decode_element(tensor.dtype, tensor.data(), at), want, is_lse);
      }
    }
  }
  finish(e);
  return e;
}

}  // namespace

void Errors::add(const Errors& other) {
  if (other.wrong_class + other.unwritten > 0 ? wrong_class + unwritten == 0 : sound() && other.max_abs > max_abs)
    note_worst(*this, other.worst, other.worst_got, other.worst_want);
  count += other.count;
  max_abs = std::max(max_abs, other.max_abs);
  max_reference = std::max(max_reference, other.max_reference);
  nan_count += other.nan_count;
  inf_count += other.inf_count;
  wrong_class += other.wrong_class;
  unwritten += other.unwritten;
  overwritten += other.overwritten;
  sum_abs += other.sum_abs;
  sum_square += other.sum_square;
  sum_reference_square += other.sum_reference_square;
  sum_output_square += other.sum_output_square;
  sum_product += other.sum_product;
  finish(*this);
}

std::vector<int64_t> row_coordinates(const Problem& p, int64_t row) {
  const int64_t n = rows_per_head(p);
  if (p.varlen) return {row % n, row / n};
  return {row / n / p.heads_q, row / n % p.heads_q, row % n};
}

std::string describe_element(const Problem& p, int64_t element, int64_t dim) {
  const std::vector<int64_t> at = row_coordinates(p, element / dim);
  const std::string last = dim > 1 ? concat(", d=", element % dim) : std::string();
  if (p.varlen) return concat("[t=", at[0], ", h=", at[1], last, "]");
  return concat("[b=", at[0], ", h=", at[1], ", i=", at[2], last, "]");
}

Errors compare_out(const Problem& p, const HostTensor& out, const Reference& reference) {
  return compare(p, out, reference, false);
}
Errors compare_lse(const Problem& p, const HostTensor& lse, const Reference& reference) {
  return compare(p, lse, reference, true);
}

double worst_lse_share(const Problem& p, const HostTensor& lse, const Reference& ref, int64_t* worst_row,
                       bool narrow_products) {
  double worst = 0;
  for (int64_t row = 0; row < ref.rows; ++row) {
    if (ref.state[row] != RowState::computed || !std::isfinite(ref.lse[row])) continue;
    const double got = decode_element(DType::f32, lse.data(), row_offset(p, lse, row, true));
    const double share =
        std::fabs(got - ref.lse[row]) / lse_bound(p, ref.logit_size[row], ref.lse[row], narrow_products);
    if (!(share > worst)) continue;
    worst = share;
    if (worst_row) *worst_row = row;
  }
  return worst;
}

}  // namespace rapt::check
