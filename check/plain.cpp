// Plain attention in float, row by row. Masks and lengths come from the oracle's Reading, so only the arithmetic
// differs from the oracle.
#include "plain.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "format.h"
#include "work.h"

namespace rapt::check {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

// q, k and v of a Reading, converted to float. The numbering of rows is the same.
struct Operands {
  explicit Operands(const Reading& r) : q(in_float(r.q)), k(in_float(r.k)), v(in_float(r.v)) {}
  std::vector<float> q, k, v;

 private:
  static std::vector<float> in_float(const std::vector<double>& values) {
    std::vector<float> floats(values.size());
    std::transform(values.begin(), values.end(), floats.begin(), [](double x) { return static_cast<float>(x); });
    return floats;
  }
};

float logit(const Reading& r, const Operands& operands, int64_t b, int64_t h, int64_t i, int64_t j) {
  if (!r.visible(b, h, i, j)) return -infinity;
  const Problem& p = r.problem();
  const float* q = operands.q.data() + r.row_q(b, h, i) * p.head_dim;
  const float* k = operands.k.data() + r.row_k(b, r.kv_head(h), j) * p.head_dim;
  float dot = 0;
  for (int64_t d = 0; d < p.head_dim; ++d) dot += q[d] * k[d];
  float x = static_cast<float>(r.scale) * dot;
  if (p.softcap) x = *p.softcap * std::tanh(x / *p.softcap);
  return x + static_cast<float>(r.bias(b, h, i, j)) + static_cast<float>(r.alibi(b, h, i, j));
}

float rounded(DType dtype, float x) { return static_cast<float>(round_to(dtype, static_cast<double>(x))); }

float maximum(const std::vector<float>& x, float start) {
  float m = start;
  for (const float x_j : x)
    m = std::isnan(x_j) || std::isnan(m) ? std::numeric_limits<float>::quiet_NaN() : std::fmax(m, x_j);
  return m;
}

bool is_fp8_mode(PvMode pv) { return pv == PvMode::fp8 || pv == PvMode::fp8x2; }

void plain_row(const Reading& r, const Operands& operands, int64_t b, int64_t h, int64_t i, DType probability,
               float* out, float& lse) {
  const int64_t dim = r.problem().head_dim_v;
  const PvMode pv = r.problem().pv;
  std::vector<float> x(r.sequences[b].seqlen_k);
  for (int64_t j = 0; j < std::ssize(x); ++j) x[j] = logit(r, operands, b, h, i, j);
  const float sink = r.has_sink() ? static_cast<float>(r.sink(h)) : -infinity;
  const float m = maximum(x, sink);
  lse = m;
  if (m == -infinity) return;
  float sum = sink == -infinity ? 0.0f : std::exp(sink - m);
  for (const float x_j : x)
    if (x_j != -infinity) sum += std::exp(x_j - m);
  for (int64_t j = 0; j < std::ssize(x); ++j) {
    if (x[j] == -infinity) continue;
    const float weight = std::exp(x[j] - m);
    const float p = is_fp8_mode(pv) ? fp8_weight(pv, weight) : rounded(probability, weight / sum);
    const float* v = operands.v.data() + r.row_k(b, r.kv_head(h), j) * dim;
    for (int64_t d = 0; d < dim; ++d) out[d] += p * v[d];
  }
  if (is_fp8_mode(pv))
    for (int64_t d = 0; d < dim; ++d) out[d] /= sum;
  lse = m + std::log(sum);
}

}  // namespace

float fp8_weight(PvMode pv, float weight) {
  const float scaled = 256 * weight, high = rounded(DType::e4m3, scaled);
  return (pv == PvMode::fp8x2 ? high + rounded(DType::e4m3, scaled - high) : high) / 256;
}

void store_row(const Reading& r, int64_t b, int64_t h, int64_t i, const float* out, float lse, const Outputs& outputs) {
  const bool packed = r.problem().varlen;
  const int64_t t = r.sequences[b].first_q + i;
  const int64_t base = packed ? outputs.out.index({t, h, 0}) : outputs.out.index({b, h, i, 0});
  for (int64_t d = 0; d < r.problem().head_dim_v; ++d)
    encode_element(outputs.out.dtype, outputs.out.data(), base + d * outputs.out.strides.back(),
                   static_cast<double>(out[d]));
  if (!outputs.lse.present()) return;
  const int64_t at = packed ? outputs.lse.index({h, t}) : outputs.lse.index({b, h, i});
  encode_element(DType::f32, outputs.lse.data(), at, static_cast<double>(lse));
}

void store_unused_rows(const Reading& r, int64_t b, int64_t h, const Outputs& outputs) {
  const std::vector<float> zeros(r.problem().head_dim_v, 0.0f);
  for (int64_t i = r.sequences[b].seqlen_q; i < r.sequences[b].rows_q; ++i)
    store_row(r, b, h, i, zeros.data(), -infinity, outputs);
}

void plain(const Reading& r, DType probability, const Outputs& outputs, int64_t row_step) {
  const Problem& p = r.problem();
  if (p.head_dim_v == 0) return;
  const Stage stage("plain attention", r.rows_q / row_step);
  const Operands operands(r);
  for_each_parallel(p.batch * p.heads_q, [&](int64_t bh) {
    const int64_t b = bh / p.heads_q, h = bh % p.heads_q;
    for (int64_t i = 0; i < r.sequences[b].seqlen_q; i += row_step, step_done()) {
      std::vector<float> out(p.head_dim_v, 0.0f);
      float lse = 0;
      plain_row(r, operands, b, h, i, probability, out.data(), lse);
      store_row(r, b, h, i, out.data(), lse, outputs);
    }
    store_unused_rows(r, b, h, outputs);
  });
}

}  // namespace rapt::check
