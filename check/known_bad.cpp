// One tiled online-softmax kernel in float (16 queries x 64 keys, simple loops), with a switch for each defect. Masks
// and lengths come from the oracle's Reading, so nothing but the chosen defect is wrong.
#include "known_bad.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "format.h"
#include "plain.h"

namespace rapt::check {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr int64_t tile_q = 16, tile_k = 64;
using Tile = std::array<std::array<float, tile_k>, tile_q>;

float max_of(float a, float b) { return std::isnan(a) ? a : std::isnan(b) ? b : std::fmax(a, b); }

struct Kernel16x64 {
  const Reading& r;
  const Problem& p;
  const Outputs& outputs;
  Defect defect;
  StageTrace* trace;

  struct Row {
    float max = -infinity, sum = 0;
    std::vector<float> acc;
  };

  bool sees(int64_t b, int64_t h, int64_t i, int64_t j) const {
    const Sequence& s = r.sequences[b];
    const bool one_too_many =
        defect == Defect::diagonal_off_by_one && p.position_mask.causal != Causal::none && j == i + s.offset + 1;
    return r.visible(b, h, i, j) || (one_too_many && j < s.seqlen_k);
  }

  float score(int64_t b, int64_t h, int64_t i, int64_t j) const {
    const bool seen = sees(b, h, i, j);
    const bool cap_hidden = defect == Defect::softcap_after_padding && p.softcap.has_value();
    if (!seen) return cap_hidden ? *p.softcap * std::tanh(-infinity) : -infinity;
    const double *q = r.q_row(b, h, i), *k = r.k_row(b, r.kv_head(h), j);
    float dot = 0;
    for (int64_t d = 0; d < p.head_dim; ++d) dot += static_cast<float>(q[d]) * static_cast<float>(k[d]);
    float x = static_cast<float>(r.scale) * dot;
    if (p.softcap) x = *p.softcap * std::tanh(x / *p.softcap);
    return x + static_cast<float>(r.bias(b, h, i, j)) + static_cast<float>(r.alibi(b, h, i, j));
  }

  // Returns a sum, rounded to the accumulator's format.
  float kept(float sum) const {
    if (defect != Defect::half_sums) return sum;
    return static_cast<float>(round_to(DType::f16, static_cast<double>(256 * sum))) / 256;
  }

  double* trace_row(std::vector<double>& stage, int64_t b, int64_t h, int64_t i) const {
    return stage.data() + r.row_q(b, h, i) * p.seqlen_k;
  }

  // Updates the maximum, rescales the old state, and replaces the tile's scores by its weights.
  void weigh(Row& row, std::array<float, tile_k>& x, int64_t b, int64_t h, int64_t i, int64_t j0) const {
    float max = row.max;
    for (const float x_j : x) max = max_of(max, x_j);
    const float shift = max == -infinity && defect != Defect::unguarded_infinity ? 0.0f : max;
    float exponent = row.max - shift;
    if (defect == Defect::clamped_rescale) exponent = std::fmax(exponent, -20.0f);
    const float rescale = std::exp(exponent);
    row.max = max;
    row.sum *= rescale;
    for (float& a : row.acc) a *= rescale;
    if (trace)
      for (int64_t j = 0; j < j0; ++j) trace_row(trace->p, b, h, i)[j] *= static_cast<double>(rescale);
    for (float& x_j : x) x_j = std::exp(x_j - shift);
  }

  void accumulate(Row& row, const Tile& weights, const Tile& scores, int64_t c, int64_t b, int64_t h, int64_t i,
                  int64_t j0) const {
    for (int64_t j = 0; j < tile_k; ++j) {
      const bool other_lane = defect == Defect::mixed_rows && j >= tile_k / 2;
      row.sum = kept(row.sum + weights[other_lane ? c ^ 1 : c][j]);
      if (j0 + j >= r.sequences[b].seqlen_k) continue;
      float weight = weights[c][j];
      if (defect == Defect::saturated_p) weight = std::fmin(weight * 512.0f, 448.0f) / 512.0f;
      if (trace) {
        trace_row(trace->s, b, h, i)[j0 + j] = static_cast<double>(scores[c][j]);
        trace_row(trace->p, b, h, i)[j0 + j] = static_cast<double>(weight);
      }
      if (p.pv == PvMode::fp8 || p.pv == PvMode::fp8x2) weight = fp8_weight(p.pv, weight);
      if (scores[c][j] == -infinity && weight == 0.0f) continue;  // the key is masked, so V can hold anything, even NaN
      const double* v = r.v_row(b, r.kv_head(h), j0 + j);
      for (int64_t d = 0; d < p.head_dim_v; ++d) row.acc[d] = kept(row.acc[d] + weight * static_cast<float>(v[d]));
    }
  }

  void finish(Row& row, int64_t b, int64_t h, int64_t i) const {
    const float sink = r.has_sink() ? static_cast<float>(r.sink(h)) : -infinity;
    const float max = max_of(row.max, sink);
    const float shift = max == -infinity && defect != Defect::unguarded_infinity ? 0.0f : max;
    const float rescale = std::exp(row.max - shift);
    float sum = row.sum * rescale + (sink == -infinity ? 0.0f : std::exp(sink - shift));
    if (defect == Defect::floored_normaliser) sum = std::fmax(sum, 1e-10f);
    const float factor = sum == 0.0f ? 0.0f : rescale / sum;
    for (float& a : row.acc) a *= factor;
    if (trace) {
      for (int64_t j = 0; j < p.seqlen_k; ++j) trace_row(trace->p, b, h, i)[j] *= static_cast<double>(factor);
      trace->row_max[r.row_q(b, h, i)] = static_cast<double>(max);
      trace->row_sum[r.row_q(b, h, i)] = static_cast<double>(sum);
    }
    const float lse = sum == 0.0f ? -infinity : shift + std::log(sum);
    store_row(r, b, h, i, row.acc.data(), lse, outputs);
  }

  void run_tile(int64_t b, int64_t h, int64_t i0) const {
    const int64_t rows = std::min(tile_q, r.sequences[b].seqlen_q - i0);
    const int64_t keys = r.sequences[b].seqlen_k;
    const int64_t end = defect == Defect::dropped_tail_tile ? keys / tile_k * tile_k : keys;
    std::array<Row, tile_q> state;
    for (Row& row : state) {
      row.acc.assign(p.head_dim_v, 0.0f);
      if (defect == Defect::floored_normaliser) row.max = 0;
    }
    for (int64_t j0 = 0; j0 < end; j0 += tile_k) {
      Tile scores{}, weights{};
      for (int64_t c = 0; c < rows; ++c) {
        for (int64_t j = 0; j < tile_k; ++j) scores[c][j] = score(b, h, i0 + c, j0 + j);
        weights[c] = scores[c];
        weigh(state[c], weights[c], b, h, i0 + c, j0);
      }
      for (int64_t c = 0; c < rows; ++c) accumulate(state[c], weights, scores, c, b, h, i0 + c, j0);
    }
    for (int64_t c = 0; c < rows; ++c) finish(state[c], b, h, i0 + c);
  }

  void run() const {
    for_each_parallel(p.batch * p.heads_q, [this](int64_t bh) {
      for (int64_t i0 = 0; i0 < r.sequences[bh / p.heads_q].seqlen_q; i0 += tile_q)
        run_tile(bh / p.heads_q, bh % p.heads_q, i0);
      store_unused_rows(r, bh / p.heads_q, bh % p.heads_q, outputs);
    });
  }
};

// Replaces the scale of each head by the first scale. A kernel that takes [batch, heads] scales for one number does
// this.
Inputs first_scales(const Problem& p, const Inputs& inputs) {
  Inputs wrong = inputs;
  const auto flatten = [](ScaleKind kind, HostTensor& scales) {
    if (kind != ScaleKind::head) return;
    HostTensor copy = make_tensor(DType::f32, scales.shape);
    for (int64_t b = 0; b < scales.shape[0]; ++b)
      for (int64_t h = 0; h < scales.shape[1]; ++h) copy.set({b, h}, scales.at({0, 0}));
    scales = copy;
  };
  flatten(p.q_scales, wrong.q_descale);
  flatten(p.k_scales, wrong.k_descale);
  flatten(p.v_scales, wrong.v_descale);
  return wrong;
}

// The inputs that the defective kernel uses in place of the real ones.
Inputs misread(Defect defect, const Problem& p, const Inputs& inputs) {
  if (defect == Defect::head_scale_as_tensor) return first_scales(p, inputs);
  Inputs wrong = inputs;
  if (defect == Defect::forgotten_mean) wrong.k_mean = {};
  return wrong;
}

void start_trace(const Reading& r, StageTrace& trace) {
  trace.tile_q = tile_q;
  trace.tile_k = tile_k;
  trace.q = r.q;
  trace.k = r.k;
  trace.v = r.v;
  trace.s.assign(r.rows_q * r.problem().seqlen_k, -std::numeric_limits<double>::infinity());
  trace.p.assign(r.rows_q * r.problem().seqlen_k, 0.0);
  trace.row_max.assign(r.rows_q, -std::numeric_limits<double>::infinity());
  trace.row_sum.assign(r.rows_q, 0.0);
}

void run_with(Defect defect, const Problem& p, const Inputs& inputs, const Outputs& outputs, StageTrace* trace) {
  const Reading r(p, misread(defect, p, inputs));
  if (trace) start_trace(r, *trace);
  Kernel16x64{r, p, outputs, defect, trace}.run();
}

}  // namespace

const std::vector<KnownBad>& known_bad() {
  static const std::vector<KnownBad> table = {
      {Defect::dropped_tail_tile, "dropped_tail_tile", "f32 b1 h2 q40 k100 d32", Fill::normal, "S"},
      {Defect::diagonal_off_by_one, "diagonal_off_by_one", "f16 b1 h2 q96 k96 d64 causal", Fill::normal, "S"},
      {Defect::mixed_rows, "mixed_rows", "bf16 b1 h4 q128 d64", Fill::normal, "row_sum"},
      {Defect::head_scale_as_tensor, "head_scale_as_tensor", "e4m3 b2 h4:2 q64 d64 scales=head", Fill::outlier,
       "inputs"},
      {Defect::clamped_rescale, "clamped_rescale", "f32 b1 h1 q32 k256 d64", Fill::rescale, "P"},
      {Defect::floored_normaliser, "floored_normaliser", "f32 b1 h1 q64 d64 scale=-1", Fill::constant, "row_max"},
      {Defect::unguarded_infinity, "unguarded_infinity", "f32 b1 h2 q70 k200 d64 window=8,0", Fill::normal, "row_sum"},
      {Defect::saturated_p, "saturated_p", "f16 b1 h2 q64 d64", Fill::normal, "P"},
      {Defect::half_sums, "half_sums", "e4m3 out=f32 b1 h1 q16 k384 d64 scales=head pv=fp8", Fill::constant, "row_sum"},
      {Defect::forgotten_mean, "forgotten_mean", "e4m3 out=f32 b2 h4:2 q20 k70 d32 scales=head smooth_k", Fill::normal,
       "inputs"},
      {Defect::softcap_after_padding, "softcap_after_padding", "f16 b1 h2 q100 d64 causal softcap=5", Fill::normal,
       "S"},
  };
  return table;
}

Kernel kernel_with(Defect defect) {
  return [defect](const Problem& p, const Inputs& inputs, const Outputs& outputs) {
    run_with(defect, p, inputs, outputs, nullptr);
  };
}

TracedKernel traced_kernel_with(Defect defect) {
  return [defect](const Problem& p, const Inputs& inputs, const Outputs& outputs, StageTrace& trace) {
    run_with(defect, p, inputs, outputs, &trace);
  };
}

}  // namespace rapt::check
