// The oracle (float64 reference): three plain loops (scores, softmax, weighted sum), and the gradients. It interprets
// lengths, masks and scales with its own code. It is intentionally simple: not fast and not tiled. From the library it
// uses only Problem, which includes the definition of masks by position (PositionMask::sees). No kernel calls that
// definition.
#include "oracle.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <limits>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "format.h"
#include "work.h"

namespace rapt::check {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();

int64_t integer_at(const HostTensor& tensor, int64_t i) { return static_cast<int64_t>(tensor.at({i})); }

// Returns the start position of sequence b. There is one value for all sequences, or one value for each. If the tensor
// is given, its values are used.
int64_t start_of(const HostTensor& tensor, const std::vector<int64_t>& values, int64_t b) {
  if (tensor.present()) return integer_at(tensor, tensor.size() == 1 ? 0 : b);
  if (values.empty()) return 0;
  return values[values.size() == 1 ? 0 : static_cast<size_t>(b)];
}

// Returns an element of a tensor that is broadcast right-aligned to [batch, heads, queries, keys].
double broadcast_at(const HostTensor& tensor, const int64_t (&at)[4]) {
  const size_t rank = tensor.shape.size();
  int64_t offset = 0;
  for (size_t d = 0; d < rank; ++d)
    if (tensor.shape[d] != 1) offset += at[4 - rank + d] * tensor.strides[d];
  return decode_element(tensor.dtype, tensor.data(), offset);
}

// The indices of an element. s is the index within its sequence; row is the index in the packed tensor.
struct Place {
  int64_t b, h, s, row, d;
};

double descale(const HostTensor& scales, ScaleKind kind, bool packed, const Place& at) {
  switch (kind) {
    case ScaleKind::none: return 1.0;
    case ScaleKind::tensor: return decode_element(scales.dtype, scales.data(), 0);
    case ScaleKind::head: return scales.at({at.b, at.h});
    case ScaleKind::token: return packed ? scales.at({at.h, at.row}) : scales.at({at.b, at.h, at.s});
    case ScaleKind::block64: return scales.at({at.b, at.h, at.s / 64});
    case ScaleKind::block128: return scales.at({at.b, at.h, at.s / 128});
    case ScaleKind::channel: return scales.at({at.b, at.h, at.d});
  }
  return nan_value;
}

struct Source {
  const HostTensor& tensor;
  const HostTensor& scales;
  ScaleKind kind;
  bool packed;
};

// Decodes rows [0, length) of one sequence and one head into `to`.
void decode_rows(const Source& from, int64_t b, int64_t h, int64_t first, int64_t length, int64_t dim, double* to) {
  const auto& strides = from.tensor.strides;
  for (int64_t s = 0; s < length; ++s) {
    const int64_t base =
        from.packed ? (first + s) * strides[0] + h * strides[1] : b * strides[0] + h * strides[1] + s * strides[2];
    const double row_scale =
        from.kind == ScaleKind::channel ? 1.0 : descale(from.scales, from.kind, from.packed, {b, h, s, first + s, 0});
    for (int64_t d = 0; d < dim; ++d) {
      double x = decode_element(from.tensor.dtype, from.tensor.data(), base + d * strides.back()) * row_scale;
      if (from.kind == ScaleKind::channel) x *= descale(from.scales, from.kind, from.packed, {b, h, s, first + s, d});
      to[s * dim + d] = x;
    }
  }
}

}  // namespace

void for_each_parallel(int64_t count, const std::function<void(int64_t)>& body) {
  std::atomic<int64_t> next{0};
  std::exception_ptr failure;
  std::mutex guard;
  const auto work = [&] {
    try {
      for (int64_t i = next++; i < count; i = next++) body(i);
    } catch (...) {
      const std::lock_guard lock(guard);
      failure = std::current_exception();
    }
  };
  const auto threads = std::min<int64_t>(count, std::max(1u, std::thread::hardware_concurrency()));
  std::vector<std::thread> helpers;
  for (int64_t t = 1; t < threads; ++t) helpers.emplace_back(work);
  work();
  for (std::thread& helper : helpers) helper.join();
  if (failure) std::rethrow_exception(failure);
}

void Reading::read_sequences() {
  const Problem& p = problem_;
  for (int64_t b = 0; b < p.batch; ++b) {
    Sequence s{0, 0, p.seqlen_q, p.seqlen_k, 0, 0};
    if (p.varlen) {
      s.first_q = integer_at(inputs_.cu_seqlens_q, b);
      s.first_k = integer_at(inputs_.cu_seqlens_k, b);
      s.seqlen_q = std::min(p.seqlen_q, integer_at(inputs_.cu_seqlens_q, b + 1) - s.first_q);
      s.seqlen_k = std::min(p.seqlen_k, integer_at(inputs_.cu_seqlens_k, b + 1) - s.first_k);
    }
    s.rows_q = s.seqlen_q;
    if (inputs_.seqused_q.present()) s.seqlen_q = std::min(s.seqlen_q, integer_at(inputs_.seqused_q, b));
    if (inputs_.seqused_k.present()) s.seqlen_k = std::min(s.seqlen_k, integer_at(inputs_.seqused_k, b));
    s.offset = p.position_mask.causal == Causal::top_left ? 0 : s.seqlen_k - s.seqlen_q;
    if (p.has_starts) s.offset = start_of(inputs_.q_starts, p.q_starts, b) - start_of(inputs_.k_starts, p.k_starts, b);
    sequences.push_back(s);
  }
}

Reading::Reading(const Problem& problem, const Inputs& inputs) : problem_(problem), inputs_(inputs) {
  const Problem& p = problem;
  scale = p.scale ? static_cast<double>(*p.scale) : 1.0 / std::sqrt(static_cast<double>(p.head_dim));
  rows_q = p.heads_q * (p.varlen ? p.total_q : p.batch * p.seqlen_q);
  rows_k = p.heads_k * (p.varlen ? p.total_k : p.batch * p.seqlen_k);
  read_sequences();
  q.assign(rows_q * p.head_dim, 0.0);
  k.assign(rows_k * p.head_dim, 0.0);
  v.assign(rows_k * p.head_dim_v, 0.0);
  const Source from_q{inputs.q, inputs.q_descale, p.q_scales, p.varlen};
  const Source from_k{inputs.k, inputs.k_descale, p.k_scales, p.varlen};
  const Source from_v{inputs.v, inputs.v_descale, p.v_scales, p.varlen};
  for (int64_t b = 0; b < p.batch; ++b) {
    const Sequence& s = sequences[b];
    for (int64_t h = 0; h < p.heads_q && s.seqlen_q > 0; ++h)
      decode_rows(from_q, b, h, s.first_q, s.seqlen_q, p.head_dim, q.data() + row_q(b, h, 0) * p.head_dim);
    for (int64_t h = 0; h < p.heads_k && s.seqlen_k > 0; ++h) {
      decode_rows(from_k, b, h, s.first_k, s.seqlen_k, p.head_dim, k.data() + row_k(b, h, 0) * p.head_dim);
      decode_rows(from_v, b, h, s.first_k, s.seqlen_k, p.head_dim_v, v.data() + row_k(b, h, 0) * p.head_dim_v);
    }
  }
  add_k_mean();
}

void Reading::add_k_mean() {
  k_size_ = k;
  for (double& size : k_size_) size = std::fabs(size);
  if (!inputs_.k_mean.present()) return;
  const int64_t dim = problem_.head_dim;
  for (int64_t b = 0; b < problem_.batch; ++b)
    for (int64_t h = 0; h < problem_.heads_k; ++h)
      for (int64_t d = 0; d < dim; ++d) {
        const double mean = inputs_.k_mean.at({b, h, d});
        for (int64_t j = 0; j < sequences[b].seqlen_k; ++j) {
          k[row_k(b, h, j) * dim + d] += mean;
          k_size_[row_k(b, h, j) * dim + d] += std::fabs(mean);
        }
      }
}

int64_t Reading::row_q(int64_t b, int64_t h, int64_t i) const {
  if (problem_.varlen) return h * problem_.total_q + sequences[b].first_q + i;
  return (b * problem_.heads_q + h) * problem_.seqlen_q + i;
}

int64_t Reading::row_k(int64_t b, int64_t h, int64_t j) const {
  if (problem_.varlen) return h * problem_.total_k + sequences[b].first_k + j;
  return (b * problem_.heads_k + h) * problem_.seqlen_k + j;
}

bool Reading::visible(int64_t b, int64_t h, int64_t i, int64_t j) const {
  const Sequence& s = sequences[b];
  if (j < 0 || j >= s.seqlen_k) return false;
  const int64_t position = i + s.offset;
  if (!problem_.position_mask.sees(position, j)) return false;
  return !inputs_.mask.present() || broadcast_at(inputs_.mask, {b, h, i, j}) != 0.0;
}

double Reading::bias(int64_t b, int64_t h, int64_t i, int64_t j) const {
  return inputs_.bias.present() ? broadcast_at(inputs_.bias, {b, h, i, j}) : 0.0;
}

double Reading::alibi(int64_t b, int64_t h, int64_t i, int64_t j) const {
  const HostTensor& slopes = inputs_.alibi_slopes;
  if (!slopes.present()) return 0.0;
  const double slope = slopes.shape.size() == 2 ? slopes.at({b, h}) : slopes.at({h});
  return -slope * static_cast<double>(std::llabs(i + sequences[b].offset - j));
}

double Reading::logit_of(double dot, int64_t b, int64_t h, int64_t i, int64_t j) const {
  double x = scale * dot;
  if (problem_.softcap) {
    const double cap = static_cast<double>(*problem_.softcap);
    x = cap * std::tanh(x / cap);
  }
  return x + bias(b, h, i, j) + alibi(b, h, i, j);
}

double Reading::logit(int64_t b, int64_t h, int64_t i, int64_t j) const {
  if (!visible(b, h, i, j)) return -infinity;
  const double* q_i = q_row(b, h, i);
  const double* k_j = k_row(b, kv_head(h), j);
  double dot = 0;
  for (int64_t d = 0; d < problem_.head_dim; ++d) dot += q_i[d] * k_j[d];
  return logit_of(dot, b, h, i, j);
}

namespace {

// Returns the sum of the absolute values of a logit's terms. The logit's rounding errors are proportional to this sum.
double logit_size(const Reading& r, int64_t b, int64_t h, int64_t i, int64_t j) {
  const double *q_i = r.q_row(b, h, i), *k_j = r.k_size_row(b, r.kv_head(h), j);
  double size = 0;
  for (int64_t d = 0; d < r.problem().head_dim; ++d) size += std::fabs(q_i[d]) * k_j[d];
  return std::fabs(r.scale) * size + std::fabs(r.bias(b, h, i, j)) + std::fabs(r.alibi(b, h, i, j));
}

struct Softmax {
  double max = -infinity, sum = 0;  // maximum and sum over the visible keys and the sink
  double lse() const { return max == -infinity ? -infinity : max + std::log(sum); }
};

// x[j] = -inf means that key j is masked. If an x[j] is NaN, the maximum and all results are NaN.
Softmax softmax_of(const std::vector<double>& x, double sink) {
  Softmax s;
  s.max = sink;
  for (const double x_j : x) s.max = std::isnan(x_j) || std::isnan(s.max) ? nan_value : std::max(s.max, x_j);
  if (s.max == -infinity) return s;
  if (sink != -infinity) s.sum += std::exp(sink - s.max);
  for (const double x_j : x)
    if (x_j != -infinity) s.sum += std::exp(x_j - s.max);
  return s;
}

struct Row {
  int64_t b, h, i, row;
};

bool fp8_weights(const Problem& p) { return p.pv == PvMode::fp8 || p.pv == PvMode::fp8x2; }

// Adds one key's contribution to the condition numbers for weights rounded to FP8 (Reference::square_v, floor_v and
// quartic_v).
void add_rounding(const Row& at, double p, double row_sum, const double* v_j, int64_t dim, Reference& reference) {
  const double subnormal_error = std::min(p * row_sum, 0x1p-18) / row_sum;
  double size = 0;
  for (int64_t d = 0; d < dim; ++d) {
    const double square = v_j[d] * v_j[d];
    reference.square_v[at.row * dim + d] += p * p * square;
    reference.floor_v[at.row * dim + d] += subnormal_error * subnormal_error * square;
    size += square;
  }
  reference.quartic_v[at.row] += std::pow(p, 4) * size * size;
}

std::vector<double> row_logits(const Reading& r, const Row& at, const ForwardOptions& options) {
  const int64_t keys = r.sequences[at.b].seqlen_k;
  std::vector<double> x(keys, -infinity);
  const int64_t end = options.key_end < 0 ? keys : std::min(keys, options.key_end);
  for (int64_t j = options.key_begin; j < end; ++j) x[j] = r.logit(at.b, at.h, at.i, j);
  return x;
}

void capture_row(const Reading& r, const Row& at, const std::vector<double>& x, const Softmax& s, Capture& capture) {
  capture.row_max[at.row] = s.max;
  capture.row_sum[at.row] = s.sum;
  for (int64_t j = 0; j < std::ssize(x); ++j) {
    const int64_t index = at.row * capture.keys + j;
    capture.s[index] = x[j];
    if (x[j] == -infinity) continue;
    capture.s_size[index] = logit_size(r, at.b, at.h, at.i, j);
    capture.p[index] = std::exp(x[j] - s.max) / s.sum;
  }
}

void forward_row(const Reading& r, const Row& at, const ForwardOptions& options, Reference& reference) {
  const int64_t dim = r.problem().head_dim_v;
  const std::vector<double> x = row_logits(r, at, options);
  const Softmax s = softmax_of(x, r.has_sink() && options.sinks ? r.sink(at.h) : -infinity);
  reference.state[at.row] = RowState::computed;
  reference.lse[at.row] = s.lse();
  if (options.capture) capture_row(r, at, x, s, *options.capture);
  double* out = reference.out.data() + at.row * dim;
  double* weighted = reference.weighted_v.data() + at.row * dim;
  double* spread = reference.spread_v.data() + at.row * dim;
  for (int64_t j = 0; j < std::ssize(x); ++j) {
    if (x[j] == -infinity) continue;
    const double p = std::exp(x[j] - s.max) / s.sum;
    const double* v_j = r.v_row(at.b, r.kv_head(at.h), j);
    for (int64_t d = 0; d < dim; ++d) out[d] += p * v_j[d];
    for (int64_t d = 0; d < dim; ++d) weighted[d] += p * std::fabs(v_j[d]);
    if (fp8_weights(r.problem()) && x[j] != s.max) add_rounding(at, p, s.sum, v_j, dim, reference);
    if (x[j] >= s.max - 40)  // if |s.max| > 2^59, s.max - 40 rounds to s.max
      reference.logit_size[at.row] = std::max(reference.logit_size[at.row], logit_size(r, at.b, at.h, at.i, j));
  }
  for (int64_t j = 0; j < std::ssize(x); ++j) {
    if (x[j] == -infinity) continue;
    const double p = std::exp(x[j] - s.max) / s.sum;
    const double* v_j = r.v_row(at.b, r.kv_head(at.h), j);
    for (int64_t d = 0; d < dim; ++d) spread[d] += p * std::fabs(v_j[d] - out[d]);
    if (reference.scatter_v.empty()) continue;
    double* scatter = reference.scatter_v.data() + at.row * dim;
    for (int64_t d = 0; d < dim; ++d) scatter[d] += p * p * (v_j[d] - out[d]) * (v_j[d] - out[d]);
  }
}

Reference empty_reference(int64_t rows, int64_t head_dim_v) {
  Reference reference;
  reference.rows = rows;
  reference.head_dim_v = head_dim_v;
  reference.state.assign(rows, RowState::untouched);
  for (auto* per_row : {&reference.lse, &reference.logit_size}) per_row->assign(rows, 0.0);
  for (auto* per_value : {&reference.out, &reference.weighted_v, &reference.spread_v})
    per_value->assign(rows * head_dim_v, 0.0);
  return reference;
}

void size_capture(const Reading& r, Capture& capture) {
  capture.keys = r.problem().seqlen_k;
  capture.s.assign(r.rows_q * capture.keys, -infinity);
  for (auto* per_pair : {&capture.s_size, &capture.p}) per_pair->assign(r.rows_q * capture.keys, 0.0);
  capture.row_max.assign(r.rows_q, -infinity);
  capture.row_sum.assign(r.rows_q, 0.0);
}

}  // namespace

Reference forward(const Reading& r, const ForwardOptions& options) {
  const Problem& p = r.problem();
  Reference reference = empty_reference(r.rows_q, p.head_dim_v);
  if (options.capture) size_capture(r, *options.capture);
  if (fp8_weights(p)) {
    for (auto* per_value : {&reference.square_v, &reference.floor_v}) per_value->assign(reference.out.size(), 0.0);
    reference.quartic_v.assign(reference.lse.size(), 0.0);
  }
  if (is_tensor_core_fp8(p.q) && is_tensor_core_fp8(p.k)) reference.scatter_v.assign(reference.out.size(), 0.0);
  const Stage stage("float64 oracle", r.rows_q);
  for_each_parallel(p.batch * p.heads_q, [&](int64_t bh) {
    const int64_t b = bh / p.heads_q, h = bh % p.heads_q;
    for (int64_t i = 0; i < r.sequences[b].seqlen_q; ++i, step_done()) {
      const Row at{b, h, i, r.row_q(b, h, i)};
      if (i % options.row_step == 0)
        forward_row(r, at, options, reference);
      else
        reference.state[at.row] = RowState::skipped;
    }
    for (int64_t i = r.sequences[b].seqlen_q; i < r.sequences[b].rows_q; ++i) {  // unused rows: out is 0
      reference.state[r.row_q(b, h, i)] = RowState::computed;
      reference.lse[r.row_q(b, h, i)] = -infinity;
    }
  });
  return reference;
}

Reference forward(const Problem& problem, const Inputs& inputs, const ForwardOptions& options) {
  return forward(Reading(problem, inputs), options);
}

Reference merge_states(const Problem& problem, const std::vector<Reference>& parts, const HostTensor& sinks) {
  if (parts.empty()) invalid("parts = 0: merging needs at least one state");
  const int64_t dim = parts[0].head_dim_v, rows = parts[0].rows;
  const int64_t rows_per_head = problem.varlen ? problem.total_q : problem.seqlen_q;
  Reference whole = empty_reference(rows, dim);
  for (int64_t row = 0; row < rows; ++row) {
    whole.state[row] = parts[0].state[row];
    std::vector<double> lses;
    for (const Reference& part : parts) lses.push_back(part.lse[row]);
    const Softmax s = softmax_of(lses, sinks.present() ? sinks.at({row / rows_per_head % problem.heads_q}) : -infinity);
    whole.lse[row] = s.lse();
    for (size_t n = 0; n < parts.size(); ++n)
      for (int64_t d = 0; d < dim && lses[n] != -infinity; ++d)
        whole.out[row * dim + d] += std::exp(lses[n] - s.max) / s.sum * parts[n].out[row * dim + d];
  }
  return whole;
}

namespace {

// Adds one query's contribution to the gradients. dx = p * (d_out . v - d_out . out), times the derivatives of softcap
// and scale.
void backward_row(const Reading& r, const Row& at, const double* d_out, Gradients& gradients) {
  const Problem& p = r.problem();
  const std::vector<double> x = row_logits(r, at, {});
  const Softmax s = softmax_of(x, r.has_sink() ? r.sink(at.h) : -infinity);
  std::vector<double> weight(x.size(), 0.0), d_weight(x.size(), 0.0);
  double mean = 0;
  for (int64_t j = 0; j < std::ssize(x); ++j) {
    if (x[j] == -infinity) continue;
    weight[j] = std::exp(x[j] - s.max) / s.sum;
    const int64_t row_k = r.row_k(at.b, r.kv_head(at.h), j);
    for (int64_t d = 0; d < p.head_dim_v; ++d) {
      d_weight[j] += d_out[d] * r.v[row_k * p.head_dim_v + d];
      gradients.dv[row_k * p.head_dim_v + d] += weight[j] * d_out[d];
    }
    mean += weight[j] * d_weight[j];
  }
  for (int64_t j = 0; j < std::ssize(x); ++j) {
    if (x[j] == -infinity) continue;
    double dx = weight[j] * (d_weight[j] - mean) * r.scale;
    if (p.softcap) {  // x - bias - alibi = cap * tanh(.), whose derivative is 1 - tanh^2
      const double capped = x[j] - r.bias(at.b, at.h, at.i, j) - r.alibi(at.b, at.h, at.i, j);
      const double t = capped / static_cast<double>(*p.softcap);
      dx *= 1 - t * t;
    }
    const int64_t row_k = r.row_k(at.b, r.kv_head(at.h), j);
    for (int64_t d = 0; d < p.head_dim; ++d) {
      gradients.dq[at.row * p.head_dim + d] += dx * r.k[row_k * p.head_dim + d];
      gradients.dk[row_k * p.head_dim + d] += dx * r.q[at.row * p.head_dim + d];
    }
  }
}

}  // namespace

Gradients backward(const Problem& p, const Inputs& inputs, const std::vector<double>& d_out) {
  const Reading r(p, inputs);
  Gradients gradients;
  gradients.dq.assign(r.q.size(), 0.0);
  gradients.dk.assign(r.k.size(), 0.0);
  gradients.dv.assign(r.v.size(), 0.0);
  // Parallel over (sequence, kv head), because the query heads of a group add to the same dK and dV.
  for_each_parallel(p.batch * p.heads_k, [&](int64_t bh) {
    const int64_t b = bh / p.heads_k, group = p.heads_q / p.heads_k;
    for (int64_t h = bh % p.heads_k * group, end = h + group; h < end; ++h)
      for (int64_t i = 0; i < r.sequences[b].seqlen_q; ++i) {
        const Row at{b, h, i, r.row_q(b, h, i)};
        backward_row(r, at, d_out.data() + at.row * p.head_dim_v, gradients);
      }
  });
  return gradients;
}

std::vector<char> keys_seen(const Reading& r) {
  const Problem& p = r.problem();
  std::vector<char> seen(r.rows_k, 0);
  for (int64_t b = 0; b < p.batch; ++b)
    for (int64_t h = 0; h < p.heads_q; ++h)
      for (int64_t i = 0; i < r.sequences[b].seqlen_q; ++i)
        for (int64_t j = 0; j < r.sequences[b].seqlen_k; ++j)
          if (r.visible(b, h, i, j)) seen[r.row_k(b, r.kv_head(h), j)] = 1;
  return seen;
}

}  // namespace rapt::check
