// Facts of a Problem: scale, geometry and access classes, inputs of planning, sequences, flops and bytes. Called by
// planner, families, check/ and lab/. The problem must have been validated.
#include "problem/problem.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"

namespace rapt {

float Problem::softmax_scale() const {
  return scale ? *scale : static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
}

// Geometry and access.

namespace {
__extension__ using Wide =
    __int128;  // products of two int64; counts of pairs are below 2^102, including intermediate sums

// Strides of the layout, from the fastest dimension outwards. A size of 0 counts as 1.
void fill_layout_strides(Geometry& g, Layout layout) {
  const auto size = [&g](size_t i) { return std::max<int64_t>(g.shape[i], 1); };
  const size_t dim = static_cast<size_t>(g.rank) - 1;
  // The indices of the dimensions heads and rows in the logical order: [batch, heads, seqlen, dim] or [total, heads,
  // dim].
  const size_t heads = 1, rows = g.rank == 4 ? 2 : 0;
  const size_t inner = layout == Layout::bhsd ? rows : heads, outer = layout == Layout::bhsd ? heads : rows;
  g.strides[dim] = 1;
  g.strides[inner] = size(dim);
  g.strides[outer] = g.strides[inner] * size(inner);
  if (g.rank == 4) g.strides[0] = g.strides[outer] * size(outer);
}
}  // namespace

Geometry geometry(const Problem& p, Slot slot) {
  if (slot == Slot::v && p.v_in_k) {
    Geometry v = geometry(p, Slot::k);
    v.shape[static_cast<size_t>(v.rank) - 1] = p.head_dim_v;
    return v;
  }
  const bool query_side = slot == Slot::q || slot == Slot::out;
  const int64_t heads = query_side ? p.heads_q : p.heads_k;
  const int64_t dim = slot == Slot::q || slot == Slot::k ? p.head_dim : p.head_dim_v;
  Geometry g;
  if (p.varlen) {
    g.rank = 3;
    g.shape = {query_side ? p.total_q : p.total_k, heads, dim, 1};
  } else {
    g.shape = {p.batch, heads, query_side ? p.seqlen_q : p.seqlen_k, dim};
  }
  const std::optional<std::vector<int64_t>>* given[] = {&p.q_strides, &p.k_strides, &p.v_strides, &p.out_strides};
  const auto& strides = *given[static_cast<size_t>(slot)];
  if (strides) {
    std::copy_n(strides->begin(), std::min(strides->size(), g.strides.size()), g.strides.begin());
  } else {
    fill_layout_strides(g, p.layout);
  }
  return g;
}

namespace {
constexpr int64_t tma_limit = int64_t{1} << 40;  // bytes; CUDA driver API, cuTensorMapEncodeTiled

// The tensor map of a paged cache has one dimension for pages and heads, in steps of the greatest common divisor of
// their strides. Its coordinates have 32 bits. All strides must be positive multiples of 4 elements (16 bytes of f32).
bool can_unite_outer_dimensions(const Geometry& g) {
  if (g.rank != 4 || g.shape[0] <= 1 || g.shape[1] <= 1) return true;
  const Wide end = Wide{g.shape[0] - 1} * g.strides[0] + Wide{g.shape[1] - 1} * g.strides[1];
  return end / 4 <= INT32_MAX || end / std::gcd(g.strides[0], g.strides[1]) <= INT32_MAX;
}
}  // namespace

Access access_of(DType dtype, const Geometry& g, uintptr_t base, bool cache) {
  const auto last = static_cast<size_t>(g.rank) - 1;
  const int64_t element = bytes_of(dtype);
  Access access;
  access.unit_last = g.shape[last] <= 1 || g.strides[last] == 1;
  access.aligned16 = base % 16 == 0;
  bool mappable = true;
  for (size_t i = 0; i < last; ++i) {
    if (g.shape[i] <= 1) continue;
    access.aligned16 = access.aligned16 && g.strides[i] % (16 / element) == 0;
    mappable = mappable && g.strides[i] > 0 && g.strides[i] < tma_limit / element;
  }
  access.tma = access.unit_last && access.aligned16 && mappable && (!cache || can_unite_outer_dimensions(g));
  return access;
}

ScoreAccess score_access(DType dtype, const Geometry& g, uintptr_t base) {
  if (g.rank == 0) return {};
  const int64_t element = bytes_of(dtype);
  const auto last = static_cast<size_t>(g.rank) - 1;
  ScoreAccess access;
  access.pairs = g.shape[last] % 2 == 0 && g.shape[last] > 0 && g.strides[last] == 1 &&
                 base % static_cast<uintptr_t>(2 * element) == 0;
  access.octets = access.pairs && g.shape[last] % 8 == 0 && base % std::min<uintptr_t>(8 * element, 16) == 0;
  access.boxes = g.shape[last] > 1 && g.strides[last] == 1 && base % 16 == 0;
  for (size_t i = 0; i < last; ++i) {
    if (g.shape[i] <= 1) continue;
    const int64_t stride = g.strides[i];
    access.pairs = access.pairs && stride % 2 == 0;
    access.octets = access.octets && stride % 8 == 0;
    access.boxes = access.boxes && stride >= 0 && stride < tma_limit / element && stride % (16 / element) == 0;
  }
  access.one_row = access.boxes && (g.rank < 2 || g.shape[last - 1] == 1 || g.strides[last - 1] == 0);
  return access;
}

ScoreAccess score_access(const Problem& p, const Broadcast& scores) {
  if (!scores.present()) return {};
  Geometry g;
  g.shape = {p.batch, p.heads_q, p.seqlen_q, p.seqlen_k};
  int64_t stride = 1;
  for (size_t i = 4; i-- > 0;) {
    if (scores.one[i]) g.shape[i] = 1;
    g.strides[i] = stride;
    const Wide next = Wide{stride} * std::max<int64_t>(g.shape[i], 1);
    stride = static_cast<int64_t>(next < tma_limit ? next : tma_limit + next % 2);
  }
  return score_access(scores.dtype, g);
}

bool overlaps_itself(const Geometry& g) {
  std::array<std::pair<Wide, Wide>, 4> moving{};  // |stride|, size - 1
  size_t count = 0;
  for (size_t i = 0; i < static_cast<size_t>(g.rank); ++i) {
    const Wide stride = g.strides[i];
    if (g.shape[i] == 0) return false;
    if (g.shape[i] > 1) moving[count++] = {stride < 0 ? -stride : stride, g.shape[i] - 1};
  }
  std::sort(moving.begin(), moving.begin() + static_cast<std::ptrdiff_t>(count));
  Wide reach = 0;
  for (size_t i = 0; i < count; ++i) {
    if (moving[i].first <= reach) return true;
    reach += moving[i].first * moving[i].second;
  }
  return false;
}

// Inputs of planning.

ScaleClass scale_class(const Problem& problem) {
  const float c = problem.softmax_scale() * 1.44269504f;
  if (!std::isnormal(c)) return ScaleClass::other;
  if (c < 0) return ScaleClass::negative;
  return c >= 0x1p-100f && c <= 0x1p100f ? ScaleClass::moderate : ScaleClass::positive;
}

bool has_moderate_softcap(const Problem& problem) {
  if (!problem.softcap || *problem.softcap < 0x1p-100f || *problem.softcap > 0x1p100f) return false;
  const float scale = problem.softmax_scale();
  return scale == 0 || std::isnormal(scale / *problem.softcap);
}

namespace {
uint64_t access_bits(const Access& a) {
  return static_cast<uint64_t>(a.unit_last) | static_cast<uint64_t>(a.aligned16) << 1 |
         static_cast<uint64_t>(a.tma) << 2;
}

// Packs small values into 64-bit words, one after another. The widths of one word's values sum to at most 64.
class Bits {
 public:
  template <class T>
  Bits& add(T value, int width) {
    word_ = word_ << width | static_cast<uint64_t>(value);
    return *this;
  }
  Bits& add(const Broadcast& t) {
    add(t.dtype, 8);
    for (const bool one : t.one) add(one, 1);
    return add(t.access.pairs, 1).add(t.access.octets, 1).add(t.access.boxes, 1).add(t.access.one_row, 1);
  }
  uint64_t word() const { return word_; }

 private:
  uint64_t word_ = 0;
};

// All facts that same_plan compares, except mod, which is text. Comparison and hash use this list, so they agree.
constexpr size_t plain_words = 13;
constexpr size_t position_values = [] {
  size_t count = 0;
  for (const PositionWord& mask : position_words) count += static_cast<size_t>(mask.count());
  return count;
}();
using PlanKey = std::array<uint64_t, plain_words + position_values>;

PlanKey plan_key(const Problem& p) {
  Bits types, features;
  types.add(p.op, 4).add(p.q, 8).add(p.k, 8).add(p.v, 8).add(p.out, 8).add(p.bias);
  features.add(p.mask)
      .add(p.position_mask.causal, 2)
      .add(p.softcap.has_value(), 1)
      .add(has_moderate_softcap(p), 1)
      .add(scale_class(p), 2);
  features.add(p.alibi, 1)
      .add(p.alibi_per_batch, 1)
      .add(p.sinks, 1)
      .add(p.varlen, 1)
      .add(p.seqused, 1)
      .add(p.seqused_q, 1);
  features.add(p.q_scales, 3)
      .add(p.k_scales, 3)
      .add(p.v_scales, 3)
      .add(p.smooth_k, 1)
      .add(p.hadamard, 1)
      .add(p.v_in_k, 1);
  features.add(p.has_starts, 1).add(p.lse, 1).add(p.partial, 1).add(p.invariant, 1).add(p.pv, 2).add(p.acc, 2);
  features.add(access_bits(p.access_q), 3).add(access_bits(p.access_k), 3).add(access_bits(p.access_v), 3);
  features.add(access_bits(p.access_out), 3);
  const auto u = [](int64_t value) { return static_cast<uint64_t>(value); };
  PlanKey key{types.word(),  features.word(), u(p.batch),   u(p.heads_q), u(p.heads_k),   u(p.seqlen_q), u(p.seqlen_k),
              u(p.head_dim), u(p.head_dim_v), u(p.total_q), u(p.total_k), u(p.page_size), u(p.splits)};
  size_t next = plain_words;
  for (const PositionWord& mask : position_words)
    for (int i = 0; i < mask.count(); ++i) key[next++] = u(p.position_mask.*mask.values[i].field);
  return key;
}

// Adds a word to the hash by one multiplication. At the end, the finaliser of MurmurHash3 (Appleby) spreads every bit.
uint64_t step(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 32);
}
uint64_t finish(uint64_t x) {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdu;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53u;
  return x ^ (x >> 33);
}
}  // namespace

bool same_plan(const Problem& a, const Problem& b) { return plan_key(a) == plan_key(b) && a.mod == b.mod; }

uint64_t plan_hash(const Problem& problem) {
  uint64_t hash = problem.mod.size();
  for (const uint64_t word : plan_key(problem)) hash = step(hash, word);
  for (const char c : problem.mod) hash = step(hash, static_cast<unsigned char>(c));
  return finish(hash);
}

namespace {
// Returns "" if all kernels can read the tensor.
std::string access_words(const char* tensor, const Access& a) {
  if (a == Access{}) return "";
  return concat("; ", tensor, a.unit_last ? "" : " strided", a.aligned16 ? "" : " unaligned", a.tma ? "" : " no_map");
}
// Returns "" if kernels can read the tensor as the problem line says.
std::string access_words(const char* tensor, const Broadcast& t, const Problem& p) {
  const ScoreAccess& a = t.access;
  if (a == score_access(p, t)) return "";
  return concat("; ", tensor,
                a.octets  ? " in octets"
                : a.pairs ? " in pairs"
                          : " not in pairs",
                a.boxes ? ", in boxes" : ", not in boxes", a.one_row ? " of one row" : "");
}
}  // namespace

std::string plan_line(const Problem& problem) {
  Problem p;
  static_cast<PlanFacts&>(p) = problem;
  if (p.softcap) p.softcap = has_moderate_softcap(problem) ? 1.0f : 1e35f;
  switch (scale_class(problem)) {
    case ScaleClass::moderate: p.scale.reset(); break;
    case ScaleClass::negative: p.scale = -1.0f; break;
    case ScaleClass::positive: p.scale = 1e-35f; break;
    case ScaleClass::other: p.scale = 0.0f;
  }
  return concat(to_string(p), p.alibi_per_batch ? "; alibi_slopes per batch" : "", access_words("q", p.access_q),
                access_words("k", p.access_k), access_words("v", p.access_v), access_words("out", p.access_out),
                access_words("bias", p.bias, p), access_words("mask", p.mask, p));
}

// Sequences.

namespace {
int64_t start_of(const std::vector<int64_t>& starts, int64_t b) {
  if (starts.empty()) return 0;
  return starts.size() == 1 ? starts[0] : starts[static_cast<size_t>(b)];
}

bool lengths_vary(const Problem& p) { return !p.lengths_q.empty() || !p.used_q.empty() || !p.used_k.empty(); }

// Returns sequence(p, b) without the packed rows. If lengths are unknown, uses the maxima.
SequenceInfo lengths_of(const Problem& p, int64_t b) {
  const auto at = static_cast<size_t>(b);
  SequenceInfo s;
  s.seqlen_q = p.lengths_q.empty() ? p.seqlen_q : std::min<int64_t>(p.lengths_q[at], p.seqlen_q);
  s.seqlen_k = p.lengths_k.empty() ? p.seqlen_k : std::min<int64_t>(p.lengths_k[at], p.seqlen_k);
  if (!p.used_q.empty()) s.seqlen_q = std::min<int64_t>(s.seqlen_q, p.used_q[at]);
  if (!p.used_k.empty()) s.seqlen_k = std::min<int64_t>(s.seqlen_k, p.used_k[at]);
  if (p.has_starts) {
    s.offset = start_of(p.q_starts, b) - start_of(p.k_starts, b);
  } else if (p.position_mask.causal != Causal::top_left) {
    s.offset = s.seqlen_k - s.seqlen_q;
  }
  return s;
}
}  // namespace

SequenceInfo sequence(const Problem& p, int64_t b) {
  if (b < 0 || b >= p.batch) invalid("sequence ", b, ", batch = ", p.batch, ": must be 0 to batch - 1");
  if (p.varlen && p.lengths_q.empty()) invalid("sequence ", b, ": the lengths of this varlen problem are not known");
  SequenceInfo s = lengths_of(p, b);
  s.first_q = std::accumulate(p.lengths_q.begin(), p.lengths_q.begin() + (p.varlen ? b : 0), int64_t{0});
  s.first_k = std::accumulate(p.lengths_k.begin(), p.lengths_k.begin() + (p.varlen ? b : 0), int64_t{0});
  return s;
}

// Arithmetic and traffic.

namespace {
Wide pairs_of(const Problem& p, const SequenceInfo& s) {
  return visible_pairs<Wide>(p.position_mask, s.offset, s.seqlen_q, s.seqlen_k);
}

// The numbers of rows in use. If the lengths are unknown, all rows count.
struct Rows {
  double q = 0, k = 0;
};
Rows rows_in_use(const Problem& p) {
  Rows rows;
  const auto add = [&rows](const SequenceInfo& s, int64_t times) {
    rows.q += static_cast<double>(times) * static_cast<double>(s.seqlen_q);
    rows.k += static_cast<double>(times) * static_cast<double>(s.seqlen_k);
  };
  if (lengths_vary(p)) {
    for (int64_t b = 0; b < p.batch; ++b) add(lengths_of(p, b), 1);
  } else if (p.batch > 0) {
    add(lengths_of(p, 0), p.batch);
  }
  if (!p.varlen) return rows;
  return {std::min(rows.q, static_cast<double>(p.total_q)), std::min(rows.k, static_cast<double>(p.total_k))};
}

double scale_count(const Problem& p, ScaleKind kind, bool query_side) {
  const double batch = static_cast<double>(p.batch), heads = static_cast<double>(query_side ? p.heads_q : p.heads_k);
  const int64_t seqlen = query_side ? p.seqlen_q : p.seqlen_k, total = query_side ? p.total_q : p.total_k;
  const auto blocks = [seqlen](int64_t n) {
    const int64_t count = (seqlen + n - 1) / n;
    return static_cast<double>(count);
  };
  switch (kind) {
    case ScaleKind::none: return 0;
    case ScaleKind::tensor: return 1;
    case ScaleKind::head: return batch * heads;
    case ScaleKind::token: return heads * (p.varlen ? static_cast<double>(total) : batch * static_cast<double>(seqlen));
    case ScaleKind::block64: return batch * heads * blocks(64);
    case ScaleKind::block128: return batch * heads * blocks(128);
    case ScaleKind::channel: return batch * heads * static_cast<double>(p.head_dim_v);
  }
  return 0;
}

double broadcast_bytes(const Problem& p, const Broadcast& tensor) {
  const std::array<int64_t, 4> full{p.batch, p.heads_q, p.seqlen_q, p.seqlen_k};
  double count = bytes_of(tensor.dtype);
  for (size_t i = 0; i < 4; ++i) count *= tensor.one[i] ? 1.0 : static_cast<double>(full[i]);
  return count;
}
}  // namespace

double flops(const Problem& p) {
  const double per_pair = 2.0 * (static_cast<double>(p.head_dim) + static_cast<double>(p.head_dim_v));
  Wide pairs = 0;
  if (lengths_vary(p) || p.q_starts.size() > 1 || p.k_starts.size() > 1) {
    for (int64_t b = 0; b < p.batch; ++b) pairs += pairs_of(p, lengths_of(p, b));
  } else if (p.batch > 0) {
    pairs = pairs_of(p, lengths_of(p, 0)) * p.batch;
  }
  // The packed totals give an upper bound. It matters only if the lengths are unknown.
  if (p.varlen) pairs = std::min({pairs, Wide{p.total_q} * p.seqlen_k, Wide{p.total_k} * p.seqlen_q});
  return static_cast<double>(pairs) * static_cast<double>(p.heads_q) * per_pair;
}

double bytes(const Problem& p) {
  const Rows rows = rows_in_use(p);
  const double heads_q = static_cast<double>(p.heads_q), heads_k = static_cast<double>(p.heads_k);
  const double dim = static_cast<double>(p.head_dim), dim_v = static_cast<double>(p.head_dim_v);
  const double scales =
      scale_count(p, p.q_scales, true) + scale_count(p, p.k_scales, false) + scale_count(p, p.v_scales, false);
  return rows.q * heads_q * (dim * bytes_of(p.q) + dim_v * bytes_of(p.out) + (p.lse ? 4.0 : 0.0)) +
         rows.k * heads_k * (dim * bytes_of(p.k) + (p.v_in_k ? 0.0 : dim_v * bytes_of(p.v))) + 4.0 * scales +
         broadcast_bytes(p, p.bias) + broadcast_bytes(p, p.mask);
}

}  // namespace rapt
