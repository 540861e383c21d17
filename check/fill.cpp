// Makes the inputs of a fill: a counter-based generator, one function for the values of each tensor, quantisation and
// its scales, and at the end special rows (masked rows, NaN). Uses the oracle's Reading only to find the rows of
// sequences and the keys that no query sees.
#include "fill.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>

#include "base/error.h"
#include "format.h"
#include "oracle.h"
#include "poison.h"
#include "rotation.h"

namespace rapt::check {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();

constexpr std::array<const char*, 11> fill_names = {
    "normal",     "outlier",  "huge",     "near_ties", "constant",        "masked_rows",
    "hidden_nan", "seen_nan", "integers", "rescale",   "rescale_reversed"};

uint64_t splitmix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// ln and cos(2 pi t), computed only with + - * /. The functions of C libraries differ in the last bit between machines.
double portable_ln(double x) {
  int exponent = 0;
  double m = std::frexp(x, &exponent);  // this is exact
  if (m < 0.7071067811865476) {
    m *= 2;
    --exponent;
  }
  const double z = (m - 1) / (m + 1), z2 = z * z;
  double sum = 0;
  for (int n = 25; n >= 1; n -= 2) sum = sum * z2 + 1.0 / n;
  return 2 * z * sum + exponent * 0.6931471805599453;
}
double portable_cos_turns(double t) {
  t -= std::floor(t + 0.5);               // exact: t >= 0 becomes [-1/2, 1/2)
  const bool flip = std::fabs(t) > 0.25;  // cos(pi - x) = -cos(x)
  const double x = 6.283185307179586 * (flip ? 0.5 - std::fabs(t) : t), x2 = x * x;
  double sum = 1;
  for (int n = 22; n >= 2; n -= 2) sum = 1 - sum * x2 / (n * (n - 1));
  return flip ? -sum : sum;
}

// Each tensor has its own stream of random numbers.
enum Stream : uint64_t {
  q_values = 1,
  k_values,
  v_values,
  bias_values,
  mask_values,
  slope_values,
  sink_values,
  scale_values,
  run_values,
  rare = 64
};

}  // namespace

double uniform(uint64_t seed, uint64_t stream, uint64_t counter) {
  const uint64_t bits = splitmix(splitmix(splitmix(seed) ^ stream) ^ counter);
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

// Box-Muller. The last bits are cut off, so a fused multiply-add cannot change the result.
double normal(uint64_t seed, uint64_t stream, uint64_t counter) {
  const double radius = std::sqrt(-2 * portable_ln(1 - uniform(seed, stream, 2 * counter)));
  const double x = radius * portable_cos_turns(uniform(seed, stream, 2 * counter + 1));
  return std::nearbyint(x * 0x1p26) * 0x1p-26;
}

Fill parse_fill(std::string_view name) {
  for (size_t n = 0; n < fill_names.size(); ++n)
    if (name == fill_names[n]) return static_cast<Fill>(n);
  std::string known;
  for (const char* fill : fill_names) known += std::string(known.empty() ? "" : ", ") + fill;
  invalid("fill = ", std::string(name), ": must be one of ", known);
}
const char* name_of(Fill fill) { return fill_names[static_cast<size_t>(fill)]; }
const std::vector<Fill>& all_fills() {
  static const std::vector<Fill> fills = {
      Fill::normal,     Fill::outlier,  Fill::huge,     Fill::near_ties, Fill::constant,        Fill::masked_rows,
      Fill::hidden_nan, Fill::seen_nan, Fill::integers, Fill::rescale,   Fill::rescale_reversed};
  return fills;
}

namespace {

struct Maker {
  const Problem& p;
  Fill fill;
  uint64_t seed;

  double noise(uint64_t stream, uint64_t counter) const {
    double x = normal(seed, stream, counter);
    if (fill == Fill::outlier && uniform(seed, stream + rare, counter) < 0.001)
      x += 10 * normal(seed, stream + 2 * rare, counter);
    return x;
  }
  double whole(uint64_t stream, uint64_t counter, int largest) const {
    return std::floor(uniform(seed, stream, counter) * (2 * largest + 1)) - largest;
  }

  // s: position within the sequence; counter: the element's logical index.
  double q_value(uint64_t counter) const {
    switch (fill) {
      case Fill::constant:
      case Fill::rescale:
      case Fill::rescale_reversed: return 1.0;
      case Fill::integers: return whole(q_values, counter, 2);
      case Fill::huge: return 128 * noise(q_values, counter);
      default: return noise(q_values, counter);
    }
  }
  // In the fills `rescale` and `rescale_reversed`, one half of the keys has small logits and large values. A kernel
  // that visits this half first must scale its results down later.
  bool has_small_logit(int64_t s) const { return (s < p.seqlen_k / 2) == (fill == Fill::rescale); }
  double k_value(uint64_t counter, int64_t s, int64_t d) const {
    switch (fill) {
      case Fill::constant: return 1.0;
      case Fill::rescale:
      case Fill::rescale_reversed:
        return (has_small_logit(s) ? -30.0 : 30.0) / std::sqrt(static_cast<double>(p.head_dim));
      case Fill::integers: return whole(k_values, counter, 2);
      case Fill::huge: return 128 * noise(k_values, counter);
      case Fill::near_ties: return noise(k_values, static_cast<uint64_t>(d)) + 0.01 * noise(k_values + rare, counter);
      default: return noise(k_values, counter);
    }
  }
  double v_value(uint64_t counter, int64_t s) const {
    switch (fill) {
      case Fill::constant: return 0.75;
      case Fill::rescale:
      case Fill::rescale_reversed: return has_small_logit(s) ? 6e4 : 1e-3;
      case Fill::integers: return whole(v_values, counter, 8);
      default: return noise(v_values, counter);
    }
  }

  Inputs make() const;
  void lengths(Inputs& in) const;
  void masks(Inputs& in) const;
  void hide_runs(HostTensor& mask) const;
  void hide_rows(Inputs& in) const;
  void poison_hidden(Inputs& in) const;
  void poison_seen(Inputs& in) const;
};

bool overlaps(const HostTensor& tensor) {
  for (size_t d = 0; d < tensor.shape.size(); ++d)
    if (tensor.strides[d] == 0 && tensor.shape[d] > 1) return true;
  return false;
}

// The position of each packed row within its sequence. Rows outside all sequences have numbers from 0 on.
std::vector<int64_t> packed_positions(const std::vector<int32_t>& lengths, int64_t total) {
  std::vector<int64_t> positions;
  for (const int32_t length : lengths)
    for (int64_t s = 0; s < length; ++s) positions.push_back(s);
  for (int64_t s = 0; std::ssize(positions) < total; ++s) positions.push_back(s);
  return positions;
}
std::vector<int64_t> packed_sequences(const std::vector<int32_t>& lengths, int64_t total) {
  std::vector<int64_t> sequences;
  for (size_t b = 0; b < lengths.size(); ++b)
    sequences.insert(sequences.end(), static_cast<size_t>(lengths[b]), static_cast<int64_t>(b));
  sequences.resize(static_cast<size_t>(total), -1);
  return sequences;
}

// The shape of the tensor to fill: [batch, heads, seqlen, dim] or packed [total, heads, dim].
struct Shape {
  DType dtype;
  ScaleKind kind;
  int64_t batch, heads, seqlen, total, dim;
  bool packed;
  const std::vector<int32_t>& lengths;
};

int64_t block_of(ScaleKind kind) { return kind == ScaleKind::block64 ? 64 : 128; }

std::vector<int64_t> scale_shape(const Shape& t, bool rank0) {
  switch (t.kind) {
    case ScaleKind::head: return {t.batch, t.heads};
    case ScaleKind::token:
      return t.packed ? std::vector<int64_t>{t.heads, t.total} : std::vector<int64_t>{t.batch, t.heads, t.seqlen};
    case ScaleKind::block64:
    case ScaleKind::block128: return {t.batch, t.heads, (t.seqlen + block_of(t.kind) - 1) / block_of(t.kind)};
    case ScaleKind::channel: return {t.batch, t.heads, t.dim};
    default: return rank0 ? std::vector<int64_t>{} : std::vector<int64_t>{1};
  }
}

// The index of an element's scale in the (contiguous) tensor of scales; -1 for rows outside all sequences.
int64_t scale_index(const Shape& t, int64_t b, int64_t h, int64_t s, int64_t row, int64_t d) {
  if (t.kind == ScaleKind::tensor) return 0;
  if (t.kind == ScaleKind::token) return t.packed ? h * t.total + row : (b * t.heads + h) * t.seqlen + s;
  if (b < 0 || s >= t.seqlen) return -1;
  if (t.kind == ScaleKind::head) return b * t.heads + h;
  if (t.kind == ScaleKind::channel) return (b * t.heads + h) * t.dim + d;
  const int64_t block = block_of(t.kind);
  return (b * t.heads + h) * ((t.seqlen + block - 1) / block) + s / block;
}

// s: position within the sequence. b: the sequence; -1 for rows outside all sequences. scale: from scale_index(); -1 if
// the element has no scale.
struct Element {
  int64_t index = 0;     // index in the tensor's memory
  uint64_t counter = 0;  // index in logical order
  int64_t b = 0, h = 0, s = 0, d = 0, scale = -1;
};

template <class Body>  // the calls of a std::function would take half of the time
void for_each_element(const Shape& t, const HostTensor& tensor, const Body& body) {
  const std::vector<int64_t> position = t.packed ? packed_positions(t.lengths, t.total) : std::vector<int64_t>{};
  const std::vector<int64_t> sequence = t.packed ? packed_sequences(t.lengths, t.total) : std::vector<int64_t>{};
  const int64_t outer = t.packed ? t.total : t.batch, inner = t.packed ? 1 : t.seqlen;
  uint64_t counter = 0;
  for (int64_t a = 0; a < outer; ++a)
    for (int64_t h = 0; h < t.heads; ++h)
      for (int64_t row = 0; row < inner; ++row)
        for (int64_t d = 0; d < t.dim; ++d) {
          const auto& st = tensor.strides;
          const int64_t index =
              t.packed ? a * st[0] + h * st[1] + d * st[2] : a * st[0] + h * st[1] + row * st[2] + d * st[3];
          const int64_t s = t.packed ? position[a] : row, b = t.packed ? sequence[a] : a;
          const int64_t scale = t.kind == ScaleKind::none ? -1 : scale_index(t, b, h, s, a, d);
          body({index, counter++, b, h, s, d, scale});
        }
}

// A scale is the largest magnitude of the values that share it, divided by the format's largest number. A stored number
// times its scale is the value. For formats of 16 and 32 bits, a scale is 1/2, 1 or 2.
HostTensor make_scales(const Shape& t, const Maker& maker, bool rank0, const HostTensor& tensor,
                       const std::vector<double>& values) {
  HostTensor scales = make_tensor(DType::f32, scale_shape(t, rank0));
  std::vector<double> largest(static_cast<size_t>(scales.size()), 0.0);
  for_each_element(t, tensor, [&](const Element& e) {
    if (e.scale >= 0) largest[e.scale] = std::max(largest[e.scale], std::fabs(values[e.counter]));
  });
  for (size_t n = 0; n < largest.size(); ++n) {
    double scale = std::ldexp(1.0, static_cast<int>(uniform(maker.seed, scale_values, n) * 3) - 1);
    if (is_fp8(t.dtype)) scale = largest[n] > 0 ? largest[n] / largest_finite(t.dtype) : 1.0;
    encode_element(DType::f32, scales.data(), static_cast<int64_t>(n), scale);
  }
  return scales;
}

// Subtracts from the values the mean of each channel over its sequence. Returns the means, which are rounded to f32.
HostTensor subtract_means(const Shape& t, const HostTensor& tensor, std::vector<double>& values) {
  HostTensor mean = make_tensor(DType::f32, {t.batch, t.heads, t.dim});
  std::vector<double> sum(static_cast<size_t>(mean.size()), 0.0), count = sum;
  const auto group = [&](const Element& e) { return static_cast<size_t>((e.b * t.heads + e.h) * t.dim + e.d); };
  for_each_element(t, tensor, [&](const Element& e) {
    if (e.b < 0) return;
    sum[group(e)] += values[e.counter];
    count[group(e)] += 1;
  });
  for (size_t n = 0; n < sum.size(); ++n)
    encode_element(DType::f32, mean.data(), static_cast<int64_t>(n), count[n] > 0 ? sum[n] / count[n] : 0.0);
  for_each_element(t, tensor, [&](const Element& e) {
    if (e.b >= 0) values[e.counter] -= mean.at({e.b, e.h, e.d});
  });
  return mean;
}

// How values are changed before they are stored.
struct Preparation {
  bool rotated = false;
  HostTensor* mean = nullptr;  // receives the subtracted means; null: no means are subtracted
};

void fill_values(const Shape& t, const Maker& maker, bool rank0_scale, const Preparation& preparation,
                 const std::function<double(uint64_t, int64_t, int64_t)>& value, HostTensor& tensor,
                 HostTensor& scales) {
  std::vector<double> values;
  values.reserve(static_cast<size_t>(tensor.size()));
  for_each_element(t, tensor, [&](const Element& e) { values.push_back(value(e.counter, e.s, e.d)); });
  if (preparation.rotated)
    for (int64_t first = 0; first < std::ssize(values); first += t.dim) rotate(values.data() + first, t.dim);
  if (preparation.mean != nullptr) *preparation.mean = subtract_means(t, tensor, values);
  if (t.kind != ScaleKind::none) scales = make_scales(t, maker, rank0_scale, tensor, values);
  for_each_element(t, tensor, [&](const Element& e) {
    const double scale = e.scale >= 0 ? decode_element(DType::f32, scales.data(), e.scale) : 1.0;
    encode_element(t.dtype, tensor.data(), e.index, values[e.counter] / scale);
  });
}

HostTensor make_operand(const Problem& p, const Shape& t, const std::optional<std::vector<int64_t>>& strides) {
  std::vector<int64_t> shape = {t.batch, t.heads, t.seqlen, t.dim};
  if (t.packed) shape = {t.total, t.heads, t.dim};
  std::vector<int64_t> own = strides ? *strides : layout_strides(p.layout, shape);
  return make_strided(t.dtype, std::move(shape), std::move(own));
}

HostTensor make_lengths(const std::vector<int32_t>& lengths, bool cumulative) {
  HostTensor tensor = make_tensor(DType::i32, {std::ssize(lengths) + (cumulative ? 1 : 0)});
  int64_t sum = 0;
  for (int64_t b = 0; b < std::ssize(lengths); ++b) {
    sum += lengths[b];
    tensor.set({cumulative ? b + 1 : b}, static_cast<double>(cumulative ? sum : lengths[b]));
  }
  return tensor;
}

HostTensor make_starts(const std::vector<int64_t>& starts) {
  HostTensor tensor;
  if (starts.empty()) return tensor;
  tensor = make_tensor(DType::i64, {std::ssize(starts)});
  for (int64_t b = 0; b < std::ssize(starts); ++b) tensor.set({b}, static_cast<double>(starts[b]));
  return tensor;
}

void Maker::lengths(Inputs& in) const {
  const auto used = [&](const char* name, const std::vector<int32_t>& lengths) {
    if (std::ssize(lengths) != p.batch)
      invalid(name, ": a fill needs the length of each sequence, but the problem has none");
    return make_lengths(lengths, false);
  };
  if (p.varlen) {
    if (std::ssize(p.lengths_q) != p.batch || std::ssize(p.lengths_k) != p.batch)
      invalid("varlen: a fill needs the length of each sequence, but the problem has none");
    in.cu_seqlens_q = make_lengths(p.lengths_q, true);
    in.cu_seqlens_k = make_lengths(p.lengths_k, true);
  }
  if (p.seqused) in.seqused_k = used("seqused", p.used_k);
  if (p.seqused_q) in.seqused_q = used("seqused_q", p.used_q);
  in.q_starts = make_starts(p.q_starts);
  in.k_starts = make_starts(p.k_starts);
}

std::vector<int64_t> broadcast_shape(const Problem& p, const Broadcast& b) {
  std::vector<int64_t> shape = {p.batch, p.heads_q, p.seqlen_q, p.seqlen_k};
  for (size_t d = 0; d < 4; ++d)
    if (b.one[d]) shape[d] = 1;
  return shape;
}

// Makes bias, mask, ALiBi slopes and sinks. The tensors are contiguous, so the logical index of an element is its
// counter.
void Maker::masks(Inputs& in) const {
  if (p.bias.present()) {
    in.bias = make_tensor(p.bias.dtype, broadcast_shape(p, p.bias));
    for (int64_t n = 0; n < in.bias.size(); ++n) {
      const auto counter = static_cast<uint64_t>(n);
      double x = fill == Fill::integers ? whole(bias_values, counter, 2) : noise(bias_values, counter);
      if (fill == Fill::constant) x = 0.5;
      if (fill == Fill::huge) x *= 1e4;
      encode_element(p.bias.dtype, in.bias.data(), n, x);
    }
  }
  if (p.mask.present()) {
    in.mask = make_tensor(DType::u8, broadcast_shape(p, p.mask));
    for (int64_t n = 0; n < in.mask.size(); ++n)
      encode_element(DType::u8, in.mask.data(), n,
                     uniform(seed, mask_values, static_cast<uint64_t>(n)) < 0.7 ? 1.0 : 0.0);
    if (fill == Fill::masked_rows || fill == Fill::rescale || fill == Fill::rescale_reversed) hide_runs(in.mask);
  }
  if (p.alibi) {
    in.alibi_slopes = make_tensor(
        DType::f32, p.alibi_per_batch ? std::vector<int64_t>{p.batch, p.heads_q} : std::vector<int64_t>{p.heads_q});
    for (int64_t n = 0; n < in.alibi_slopes.size(); ++n)  // 2^(-8 (h+1) / heads), varied a little by batch
      encode_element(DType::f32, in.alibi_slopes.data(), n,
                     std::exp2(-8.0 * static_cast<double>(n % p.heads_q + 1) / static_cast<double>(p.heads_q)) *
                         (1.0 + 0.125 * static_cast<double>(n / p.heads_q)));
  }
  if (p.sinks) {
    in.sinks = make_tensor(DType::f32, {p.heads_q});
    for (int64_t h = 0; h < p.heads_q; ++h)
      in.sinks.set({h}, fill == Fill::integers ? whole(sink_values, static_cast<uint64_t>(h), 2)
                                               : 2 * normal(seed, sink_values, static_cast<uint64_t>(h)));
  }
}

// Makes the mask hide long runs of keys from many rows, and show other runs to all rows, so that kernels can skip
// blocks.
void Maker::hide_runs(HostTensor& mask) const {
  constexpr int64_t run_rows = 160, run_keys = 48;
  const int64_t keys = mask.shape[3], rows = mask.shape[2];
  for (int64_t n = 0; n < mask.size(); ++n) {
    const int64_t row = n / keys,
                  run = (row / rows * (rows / run_rows + 1) + row % rows / run_rows) * keys + n % keys / run_keys;
    const double chance = uniform(seed, run_values, static_cast<uint64_t>(run));
    if (chance < 0.7) encode_element(DType::u8, mask.data(), n, chance < 0.4 ? 0.0 : 1.0);
  }
}

// Makes every fourth row of the mask hide all keys. If there is no mask, does the same with the bias (-inf). A row that
// is broadcast hides the keys of all rows to which it is broadcast.
void Maker::hide_rows(Inputs& in) const {
  HostTensor& hider = in.mask.present() ? in.mask : in.bias;
  if (!hider.present() || hider.size() == 0) return;
  const int64_t keys = hider.shape.back();
  for (int64_t n = 0; n < hider.size(); ++n)
    if (n / keys % 4 == 1) encode_element(hider.dtype, hider.data(), n, in.mask.present() ? 0.0 : -infinity);
}

void poison_row(HostTensor& tensor, bool packed, int64_t b, int64_t h, int64_t s) {
  const std::array<double, 3> values = {nan_value, infinity, -infinity};
  for (int64_t d = 0; d < tensor.shape.back(); ++d) {
    const double x = values[static_cast<size_t>(s + d) % values.size()];
    if (packed)
      tensor.set({s, h, d}, x);
    else
      tensor.set({b, h, s, d}, x);
  }
}

void Maker::poison_hidden(Inputs& in) const {
  const Reading reading(p, in);
  const std::vector<char> seen = keys_seen(reading);
  const int64_t rows = p.varlen ? p.total_k : p.seqlen_k;
  for (int64_t row = 0; row < reading.rows_k; ++row) {
    if (seen[row]) continue;
    const int64_t h = row / rows % p.heads_k, b = row / rows / p.heads_k;
    if (!overlaps(in.k)) poison_row(in.k, p.varlen, b, h, row % rows);
    if (!overlaps(in.v)) poison_row(in.v, p.varlen, b, h, row % rows);
  }
  if (overlaps(in.q)) return;
  for (int64_t b = 0; b < p.batch; ++b) {
    const Sequence& s = reading.sequences[b];
    for (int64_t h = 0; h < p.heads_q; ++h)
      for (int64_t i = s.seqlen_q; i < s.rows_q; ++i) poison_row(in.q, p.varlen, b, h, s.first_q + i);
  }
}

void Maker::poison_seen(Inputs& in) const {
  const Reading reading(p, in);
  for (int64_t b = 0; b < p.batch; ++b) {
    const Sequence& s = reading.sequences[b];
    if (s.seqlen_k < 2 || overlaps(in.k) || overlaps(in.v)) continue;
    for (int64_t h = 0; h < p.heads_k; ++h) {
      poison_row(in.k, p.varlen, b, h, s.first_k + s.seqlen_k - 1);
      poison_row(in.v, p.varlen, b, h, s.first_k + s.seqlen_k / 2);
    }
  }
}

Inputs Maker::make() const {
  Inputs in;
  lengths(in);
  masks(in);
  const Shape q{p.q, p.q_scales, p.batch, p.heads_q, p.seqlen_q, p.total_q, p.head_dim, p.varlen, p.lengths_q};
  const Shape k{p.k, p.k_scales, p.batch, p.heads_k, p.seqlen_k, p.total_k, p.head_dim, p.varlen, p.lengths_k};
  const Shape v{p.v, p.v_scales, p.batch, p.heads_k, p.seqlen_k, p.total_k, p.head_dim_v, p.varlen, p.lengths_k};
  in.q = make_operand(p, q, p.q_strides);
  in.k = make_operand(p, k, p.k_strides);
  in.v = make_operand(p, v, p.v_strides);
  const auto of_q = [&](uint64_t n, int64_t, int64_t) { return q_value(n); };
  const auto of_k = [&](uint64_t n, int64_t s, int64_t d) { return k_value(n, s, d); };
  const auto of_v = [&](uint64_t n, int64_t s, int64_t) { return v_value(n, s); };
  fill_values(q, *this, true, {.rotated = p.hadamard}, of_q, in.q, in.q_descale);
  const Preparation of_keys{.rotated = p.hadamard, .mean = p.smooth_k ? &in.k_mean : nullptr};
  fill_values(k, *this, false, of_keys, of_k, in.k, in.k_descale);
  fill_values(v, *this, false, {}, of_v, in.v, in.v_descale);
  if (p.v_in_k) in.v = first_channels(in.k, p.head_dim_v);
  if (fill == Fill::masked_rows) hide_rows(in);
  if (fill == Fill::hidden_nan) poison_hidden(in);
  if (fill == Fill::seen_nan) poison_seen(in);
  return in;
}

}  // namespace

Inputs make_inputs(const Problem& problem, Fill fill, uint64_t seed) { return Maker{problem, fill, seed}.make(); }

}  // namespace rapt::check
