// probe (stages.h): derives the intermediate stages of a kernel that returns only O and lse, by extra calls with
// special tensors. Where possible, these calls keep q, k, masks and lengths, so the same tiles run.
#include <algorithm>
#include <cmath>
#include <limits>

#include "stages.h"

namespace rapt::check {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

double lse_at(const Reading& r, const HostTensor& lse, int64_t b, int64_t h, int64_t i) {
  return r.problem().varlen ? lse.at({h, r.sequences[b].first_q + i}) : lse.at({b, h, i});
}

template <class Body>
void for_each_query(const Reading& r, const Body& body) {
  for (int64_t b = 0; b < r.problem().batch; ++b)
    for (int64_t h = 0; h < r.problem().heads_q; ++h)
      for (int64_t i = 0; i < r.sequences[b].seqlen_q; ++i) body(b, h, i);
}

// A V in f32 for the keys j in [first, first + head_dim_v) of every sequence: key j has a 1 in column j - first, and 0
// in the other columns.
HostTensor one_hot(const Reading& r, int64_t first) {
  const Problem& p = r.problem();
  HostTensor v = p.varlen ? make_tensor(DType::f32, {p.total_k, p.heads_k, p.head_dim_v})
                          : make_tensor(DType::f32, {p.batch, p.heads_k, p.seqlen_k, p.head_dim_v});
  for (int64_t b = 0; b < p.batch; ++b)
    for (int64_t h = 0; h < p.heads_k; ++h)
      for (int64_t d = 0; d < p.head_dim_v && first + d < r.sequences[b].seqlen_k; ++d) {
        if (p.varlen)
          v.set({r.sequences[b].first_k + first + d, h, d}, 1.0);
        else
          v.set({b, h, first + d, d}, 1.0);
      }
  return v;
}

void probe_weights(const Reading& r, const Inputs& inputs, const Kernel& kernel, StageTrace& trace) {
  Problem p = r.problem();
  p.v = p.out = DType::f32;
  p.v_scales = ScaleKind::none;
  p.v_strides.reset();
  p.out_strides.reset();
  p.pv = PvMode::automatic;
  Inputs changed = inputs;
  changed.v_descale = {};
  trace.p.assign(r.rows_q * p.seqlen_k, 0.0);
  for (int64_t first = 0; first < p.seqlen_k; first += p.head_dim_v) {
    changed.v = one_hot(r, first);
    const Outputs outputs = make_outputs(p);
    kernel(p, changed, outputs);
    for_each_query(r, [&](int64_t b, int64_t h, int64_t i) {
      for (int64_t d = 0; d < p.head_dim_v && first + d < r.sequences[b].seqlen_k; ++d)
        trace.p[r.row_q(b, h, i) * p.seqlen_k + first + d] =
            p.varlen ? outputs.out.at({r.sequences[b].first_q + i, h, d}) : outputs.out.at({b, h, i, d});
    });
  }
}

void derive_scores(const Reading& r, const HostTensor& lse, StageTrace& trace) {
  const int64_t keys = r.problem().seqlen_k;
  trace.smallest_p = 1e-30;
  trace.s.assign(r.rows_q * keys, -infinity);
  trace.row_max.assign(r.rows_q, -infinity);
  trace.row_sum.assign(r.rows_q, 0.0);
  for_each_query(r, [&](int64_t b, int64_t h, int64_t i) {
    const int64_t row = r.row_q(b, h, i);
    const double row_lse = lse_at(r, lse, b, h, i);
    double max = r.has_sink() ? r.sink(h) : -infinity;
    for (int64_t j = 0; j < r.sequences[b].seqlen_k; ++j) {
      const double p = trace.p[row * keys + j];
      if (p == 0) continue;
      const double s = std::log(p) + row_lse;
      trace.s[row * keys + j] = s;
      max = std::isnan(s) || std::isnan(max) ? std::numeric_limits<double>::quiet_NaN() : std::max(max, s);
    }
    trace.row_max[row] = max;
    if (row_lse != -infinity) trace.row_sum[row] = std::exp(row_lse - max);
  });
}

// Makes views of a part of one sequence, in the form of dense tensors with one batch entry.
struct Part {
  const Problem& p;
  int64_t b, packed_first, first, count;

  HostTensor tensor(const HostTensor& whole) const {
    HostTensor part = whole;
    const auto& st = whole.strides;
    if (p.varlen) {
      part.offset += (packed_first + first) * st[0];
      part.shape = {1, whole.shape[1], count, whole.shape[2]};
      part.strides = {1, st[1], st[0], st[2]};
    } else {
      part.offset += b * st[0] + first * st[2];
      part.shape = {1, whole.shape[1], count, whole.shape[3]};
    }
    return part;
  }

  HostTensor scales(const HostTensor& whole, ScaleKind kind) const {
    HostTensor part = whole;
    if (kind == ScaleKind::none || kind == ScaleKind::tensor) return part;
    const auto& st = whole.strides;
    if (kind == ScaleKind::token && p.varlen) {
      part.offset += (packed_first + first) * st[1];
      part.shape = {1, whole.shape[0], count};
      part.strides = {1, st[0], st[1]};
      return part;
    }
    part.offset += b * st[0];
    part.shape[0] = 1;
    const int64_t block = kind == ScaleKind::token ? 1 : kind == ScaleKind::block64 ? 64 : 128;
    if (kind == ScaleKind::token || kind == ScaleKind::block64 || kind == ScaleKind::block128) {
      part.offset += first / block * st[2];
      part.shape[2] = (count + block - 1) / block;
    }
    return part;
  }
};

// The rows of one sequence, from a tensor [batch, heads, dim].
HostTensor of_sequence(const HostTensor& whole, int64_t b) {
  HostTensor part = whole;
  if (!part.present()) return part;
  part.offset += b * whole.strides[0];
  part.shape[0] = 1;
  return part;
}

// A dense problem of one sequence without masks, with scale 1 and f32 tensors. It has one key, so lse is the dot
// product.
Problem bare(const Problem& p, int64_t seqlen_q) {
  Problem bare;
  bare.q = bare.k = bare.v = bare.out = DType::f32;
  bare.heads_q = p.heads_q;
  bare.heads_k = p.heads_k;
  bare.seqlen_q = seqlen_q;
  bare.head_dim = p.head_dim;
  bare.head_dim_v = p.head_dim_v;
  bare.scale = 1.0f;
  bare.lse = true;
  return bare;
}

Inputs zeros(const Problem& p) {
  Inputs inputs;
  inputs.q = make_tensor(p.q, {1, p.heads_q, p.seqlen_q, p.head_dim});
  inputs.k = make_tensor(p.k, {1, p.heads_k, 1, p.head_dim});
  inputs.v = make_tensor(p.v, {1, p.heads_k, 1, p.head_dim_v});
  return inputs;
}

// Probes q. If the only key is the unit vector e_d, lse is q[d] for every query.
void probe_q(const Reading& r, int64_t b, const Inputs& inputs, const Kernel& kernel, StageTrace& trace) {
  const Problem& p = r.problem();
  const Sequence& s = r.sequences[b];
  const Part part{p, b, s.first_q, 0, s.seqlen_q};
  Problem one = bare(p, s.seqlen_q);
  Inputs changed = zeros(one);
  one.q = p.q;
  one.q_scales = p.q_scales;
  changed.q = part.tensor(inputs.q);
  changed.q_descale = part.scales(inputs.q_descale, p.q_scales);
  for (int64_t d = 0; d < p.head_dim; ++d) {
    changed.k = make_tensor(DType::f32, {1, p.heads_k, 1, p.head_dim});
    for (int64_t h = 0; h < p.heads_k; ++h) changed.k.set({0, h, 0, d}, 1.0);
    const Outputs outputs = make_outputs(one);
    kernel(one, changed, outputs);
    for (int64_t h = 0; h < p.heads_q; ++h)
      for (int64_t i = 0; i < s.seqlen_q; ++i) trace.q[r.row_q(b, h, i) * p.head_dim + d] = outputs.lse.at({0, h, i});
  }
}

// Probes one key and its value. If the queries are unit vectors and this is the only key, the lse values are the
// elements of the key, and the output is its value.
void probe_key(const Reading& r, int64_t b, int64_t j, const Inputs& inputs, const Kernel& kernel, StageTrace& trace) {
  const Problem& p = r.problem();
  const Part part{p, b, r.sequences[b].first_k, j, 1};
  Problem one = bare(p, p.head_dim);
  Inputs changed = zeros(one);
  for (int64_t h = 0; h < p.heads_q; ++h)
    for (int64_t d = 0; d < p.head_dim; ++d) changed.q.set({0, h, d, d}, 1.0);
  one.k = p.k;
  one.k_scales = p.k_scales;
  changed.k = part.tensor(inputs.k);
  changed.k_descale = part.scales(inputs.k_descale, p.k_scales);
  one.smooth_k = p.smooth_k;
  changed.k_mean = of_sequence(inputs.k_mean, b);
  const Outputs key = make_outputs(one);
  kernel(one, changed, key);

  Problem alone = bare(p, 1);
  Inputs value_inputs = zeros(alone);
  alone.v = p.v;
  alone.v_scales = p.v_scales;
  value_inputs.v = part.tensor(inputs.v);
  value_inputs.v_descale = part.scales(inputs.v_descale, p.v_scales);
  const Outputs value = make_outputs(alone);
  kernel(alone, value_inputs, value);

  for (int64_t h = 0; h < p.heads_k; ++h) {
    const int64_t row = r.row_k(b, h, j), h_q = h * (p.heads_q / p.heads_k);
    for (int64_t d = 0; d < p.head_dim; ++d) trace.k[row * p.head_dim + d] = key.lse.at({0, h_q, d});
    for (int64_t d = 0; d < p.head_dim_v; ++d) trace.v[row * p.head_dim_v + d] = value.out.at({0, h_q, 0, d});
  }
}

// Checks the assumption of probe_q and probe_key: the single key e_0 and the query 2 e_0 must give lse = 2 and out = v.
// If they do not, the inputs are not observed, and a later stage shows the fault.
bool single_key_works(const Problem& p, const Kernel& kernel) {
  const Problem one = bare(p, 1);
  Inputs inputs = zeros(one);
  for (int64_t h = 0; h < p.heads_q; ++h) inputs.q.set({0, h, 0, 0}, 2.0);
  for (int64_t h = 0; h < p.heads_k; ++h) inputs.k.set({0, h, 0, 0}, 1.0);
  for (int64_t h = 0; h < p.heads_k; ++h) inputs.v.set({0, h, 0, 0}, 3.0);
  const Outputs outputs = make_outputs(one);
  kernel(one, inputs, outputs);
  return std::fabs(outputs.lse.at({0, 0, 0}) - 2) < 1e-6 && outputs.out.at({0, 0, 0, 0}) == 3;
}

void probe_inputs(const Reading& r, const Inputs& inputs, const Kernel& kernel, StageTrace& trace) {
  if (r.problem().heads_q == 0 || !single_key_works(r.problem(), kernel)) return;
  trace.q.assign(r.q.size(), 0.0);
  trace.k.assign(r.k.size(), 0.0);
  trace.v.assign(r.v.size(), 0.0);
  for (int64_t b = 0; b < r.problem().batch; ++b) {
    if (r.sequences[b].seqlen_q > 0) probe_q(r, b, inputs, kernel, trace);
    for (int64_t j = 0; j < r.sequences[b].seqlen_k; ++j) probe_key(r, b, j, inputs, kernel, trace);
  }
}

}  // namespace

TracedKernel probe(const Kernel& kernel) {
  return [kernel](const Problem& p, const Inputs& inputs, const Outputs& outputs, StageTrace& trace) {
    kernel(p, inputs, outputs);
    const Reading r(p, inputs);
    probe_inputs(r, inputs, kernel, trace);
    probe_weights(r, inputs, kernel, trace);
    derive_scores(r, outputs.lse, trace);
  };
}

}  // namespace rapt::check
