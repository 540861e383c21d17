// A call of rapt_qk or rapt_gemm with its inputs, and its check, which computes the products of the stored values in
// float64. Used by the tests of the CPU, of emulated kernels and of GPUs.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "check/fill.h"
#include "check/format.h"
#include "check/poison.h"
#include "kernels/shared/products.h"
#include "tests/cpu/support.h"

namespace rapt::test {

struct ProductCall {
  bool gemm = false;
  HostTensor a, b, out, a_descale, b_descale;  // for qk, a is q and b is k; for gemm, a is [m, k] and b is [k, n]
  ScaleKind a_scales = ScaleKind::none, b_scales = ScaleKind::none;
  std::optional<double> scale = {};  // only for qk
};

// The arguments of a call; `place` gives the address of each tensor.
class ProductArgs {
 public:
  explicit ProductArgs(const ProductCall& c, const check::Placement& place = check::in_host_memory)
      : a_("a", c.a, place),
        b_("b", c.b, place),
        out_("out", c.out, place),
        a_descale_("a_descale", c.a_descale, place),
        b_descale_("b_descale", c.b_descale, place) {
    const auto a_kind = static_cast<int32_t>(c.a_scales), b_kind = static_cast<int32_t>(c.b_scales);
    qk.struct_size = sizeof qk;
    qk.q = a_.get(), qk.k = b_.get(), qk.out = out_.get();
    qk.q_descale = a_descale_.get(), qk.k_descale = b_descale_.get(), qk.q_scales = a_kind, qk.k_scales = b_kind;
    if (c.scale) qk.has = RAPT_QK_HAS_SCALE, qk.scale = *c.scale;
    gemm.struct_size = sizeof gemm;
    gemm.a = a_.get(), gemm.b = b_.get(), gemm.out = out_.get();
    gemm.a_descale = a_descale_.get(), gemm.b_descale = b_descale_.get();
    gemm.a_scales = a_kind, gemm.b_scales = b_kind;
    is_gemm_ = c.gemm;
  }
  rapt_status run(rapt_context* context, void* stream) const {
    return is_gemm_ ? rapt_gemm(context, &gemm, stream) : rapt_qk(context, &qk, stream);
  }

  rapt_qk_args qk{};
  rapt_gemm_args gemm{};

 private:
  bool is_gemm_ = false;
  check::View a_, b_, out_, a_descale_, b_descale_;
};

// The number of rows that share a scale. 0 means all rows.
inline int64_t rows_together(ScaleKind kind) {
  return kind == ScaleKind::token ? 1 : kind == ScaleKind::block64 ? 64 : kind == ScaleKind::block128 ? 128 : 0;
}

// The index of an element's scale. `row_dim`: the position of the row in the element's index `at`.
inline std::vector<int64_t> factor_index(ScaleKind kind, const std::vector<int64_t>& at, size_t row_dim) {
  if (kind == ScaleKind::tensor) return {0};
  std::vector<int64_t> index;
  if (at.size() == 4) index = {at[0], at[1]};
  if (kind != ScaleKind::head) index.push_back(at[row_dim] / rows_together(kind));
  return index;
}
inline std::vector<int64_t> factor_shape(ScaleKind kind, const std::vector<int64_t>& shape, size_t row_dim) {
  std::vector<int64_t> last = shape;
  for (int64_t& size : last) size -= 1;
  std::vector<int64_t> result = factor_index(kind, last, row_dim);
  for (int64_t& size : result) size += 1;
  return result;
}

// Fills a tensor with N(0, 1). With scales, each value is divided by its scale, which is computed from the largest
// value that shares it.
inline void fill_side(HostTensor& t, HostTensor& descale, ScaleKind kind, size_t row_dim, uint64_t seed) {
  const auto value = [&](const std::vector<int64_t>& at) {
    uint64_t n = 0;
    for (size_t d = 0; d < at.size(); ++d) n = n * static_cast<uint64_t>(t.shape[d]) + static_cast<uint64_t>(at[d]);
    return check::normal(seed, 7, n);
  };
  if (kind == ScaleKind::none) return fill(t, value);
  descale = make_tensor(DType::f32, factor_shape(kind, t.shape, row_dim));
  each_index(t.shape, [&](const std::vector<int64_t>& at) {
    const std::vector<int64_t> place = factor_index(kind, at, row_dim);
    put(descale, place, std::max(descale.at(place), std::fabs(value(at)) / check::largest_finite(t.dtype)));
  });
  fill(t, [&](const std::vector<int64_t>& at) { return value(at) / descale.at(factor_index(kind, at, row_dim)); });
}

struct QkShape {
  int64_t batch, heads_q, heads_k, seqlen_q, seqlen_k, dim;
};

inline ProductCall make_qk(DType q, DType k, DType out, const QkShape& s, ScaleKind q_scales = ScaleKind::none,
                           ScaleKind k_scales = ScaleKind::none, uint64_t seed = 1) {
  ProductCall c;
  c.a = make_tensor(q, {s.batch, s.heads_q, s.seqlen_q, s.dim});
  c.b = make_tensor(k, {s.batch, s.heads_k, s.seqlen_k, s.dim});
  c.a_scales = q_scales, c.b_scales = k_scales;
  fill_side(c.a, c.a_descale, q_scales, 2, 2 * seed), fill_side(c.b, c.b_descale, k_scales, 2, 2 * seed + 1);
  const std::vector<int64_t> shape = {s.batch, s.heads_q, s.seqlen_q, s.seqlen_k};
  c.out = check::make_poisoned(out, shape, make_tensor(out, shape).strides);
  return c;
}

// Makes a call of gemm. b is stored with k contiguous, as torch._scaled_mm needs it, or by rows.
inline ProductCall make_gemm(DType a, DType b, DType out, int64_t m, int64_t n, int64_t k,
                             ScaleKind scales = ScaleKind::none, bool k_contiguous = true, uint64_t seed = 1) {
  ProductCall c;
  c.gemm = true;
  c.a = make_tensor(a, {m, k});
  c.b = k_contiguous ? make_strided(b, {k, n}, {1, std::max<int64_t>(k, 1)}) : make_tensor(b, {k, n});
  c.a_scales = is_fp8(a) ? scales : ScaleKind::none, c.b_scales = is_fp8(b) ? scales : ScaleKind::none;
  fill_side(c.a, c.a_descale, c.a_scales, 0, 2 * seed), fill_side(c.b, c.b_descale, c.b_scales, 1, 2 * seed + 1);
  c.out = check::make_poisoned(out, {m, n}, {std::max<int64_t>(n, 1), 1});
  return c;
}

// One element in float64, and the sum of the magnitudes of its products. Errors are relative to this sum.
struct ProductReference {
  double value = 0, magnitude = 0;
};
inline ProductReference reference(const ProductCall& c, const std::vector<int64_t>& at) {
  const size_t last = at.size() - 1;
  std::vector<int64_t> a_at = at, b_at = at;
  if (!c.gemm) b_at[1] = at[1] * c.b.shape[1] / c.a.shape[1], b_at[2] = at[3];
  const size_t a_depth = last, b_depth = c.gemm ? 0 : last, b_row = c.gemm ? 1 : 2;
  double factor = c.scale.value_or(1.0);
  if (c.a_scales != ScaleKind::none) factor *= c.a_descale.at(factor_index(c.a_scales, a_at, last - 1));
  if (c.b_scales != ScaleKind::none) factor *= c.b_descale.at(factor_index(c.b_scales, b_at, b_row));
  ProductReference r;
  for (int64_t d = 0; d < c.a.shape[a_depth]; ++d) {
    a_at[a_depth] = b_at[b_depth] = d;
    const double product = c.a.at(a_at) * c.b.at(b_at) * factor;
    r.value += product, r.magnitude += std::fabs(product);
  }
  return r;
}

struct ProductErrors {
  double max_abs = 0, worst = 0;  // worst: the largest error relative to its bound
};

// The bound for one element. Products are summed in f32 in parts of product_promotion_interval, with `slack` roundings
// of f32 for each addition. The sum is multiplied by two scales and rounded once to the dtype of out.
inline double product_bound(const ProductCall& c, const ProductReference& r, double slack) {
  const auto depth = static_cast<double>(c.a.shape.back());
  const double additions = std::min<double>(depth, product_promotion_interval) + depth / product_promotion_interval + 4;
  const double least = c.out.dtype == DType::f16 ? 0x1p-25 : 0x1p-134;  // half the distance of subnormal numbers
  return additions * slack * 0x1p-24 * r.magnitude + check::unit_roundoff(c.out.dtype) * std::fabs(r.value) * 1.001 +
         least;
}

inline ProductErrors judge(const ProductCall& c, double slack = 1.0) {
  ProductErrors e;
  each_index(c.out.shape, [&](const std::vector<int64_t>& at) {
    const ProductReference r = reference(c, at);
    const double error = std::fabs(c.out.at(at) - r.value);
    e.max_abs = std::fmax(e.max_abs, error);
    e.worst = std::isnan(error) ? infinity : std::fmax(e.worst, error / product_bound(c, r, slack));
  });
  return e;
}

}  // namespace rapt::test
