// The CPU attention kernel: online softmax (Milakov & Gimelshein 2018) over tiles as in FlashAttention-2 (Dao 2023),
// for three layouts of a tile: Wide, Narrow, and WideBf16 (tile_wide_bf16.h). Start reading at attend(). Results depend
// only on the call and the tile, not on the number of threads. Included only by the isa_*.cpp units and by
// tile_wide_bf16.h (internal linkage).
#pragma once

#include "cpu/tile_bias.h"
#include "cpu/tile_narrow.h"
#include "cpu/tile_wide.h"
#include "kernels/shared/key_tiles.h"
#include "kernels/shared/score_chain.h"

namespace rapt::cpu {
namespace {

// Calls f(r, n, score) for every score of a tile. The inner loop runs along the layout's lanes.
template <class Layout, class F>
[[gnu::always_inline]] inline void for_each_score(const AttentionParams& call, int rows, int count, float* scores,
                                                  const F& f) {
  if constexpr (Layout::capacity > narrow_rows) {
    for (int n = 0; n < count; ++n) {
      float* score_row = scores + Layout::score_index(call, 0, n);
      for (int r = 0; r < rows; ++r) f(r, n, score_row[r]);
    }
  } else {
    for (int r = 0; r < rows; ++r) {
      float* score_row = scores + Layout::score_index(call, r, 0);
      for (int n = 0; n < count; ++n) f(r, n, score_row[n]);
    }
  }
}

// Computes c * tanh(u) with u = x / c, for u^2 = t < 0.36: x times a polynomial in t, a minimax fit of tanh(u) / u with
// a relative error below 5e-9.
inline Vec cap_small(Vec x, Vec t) {
  Vec y = fma(splat(-0.0058951564f), t, splat(0.020795971f));
  y = fma(y, t, splat(-0.053783830f)), y = fma(y, t, splat(0.13331924f)), y = fma(y, t, splat(-0.33333299f));
  return mul(x, fma(y, t, splat(1.0f)));
}
constexpr float largest_small_square = 0.36f;

// The same for all u. For large |u| it uses (1 - e) / (1 + e) with e = exp(-2|u|), which cannot overflow.
inline void cap_any(float cap, Vec x, Vec u, float* to) {
  alignas(64) float of_u[lanes], e[lanes], small[lanes];
  store(u, of_u), store(cap_small(x, mul(u, u)), small);
  store(exp_negative(mul(max(u, sub(zero(), u)), splat(-2.0f))), e);
  for (int l = 0; l < lanes; ++l) {
    const float large = cap * (1.0f - e[l]) / (1.0f + e[l]);
    to[l] = of_u[l] * of_u[l] < largest_small_square ? small[l] : of_u[l] < 0.0f ? -large : large;
  }
}

// Replaces scores x by cap * tanh(x / cap). Most scores are much smaller than the cap, so their |u| is small, too.
// Eight vectors share the test. A score has the same bits whatever the others are, also if one of them is NaN.
inline void cap_scores(float cap, int64_t count, float* scores) {
  // The reciprocal is infinite for a subnormal cap. `inverse` limits it to the largest float, so that 0 * inverse is 0.
  const float reciprocal = 1.0f / cap;
  const Vec inverse = splat(reciprocal > __FLT_MAX__ ? __FLT_MAX__ : reciprocal);
  for (int64_t end = 0, i = 0; i < count; i = end) {
    end = i + 8 * lanes < count ? i + 8 * lanes : count;
    Vec most = zero();
    for (int64_t n = i; n < end; n += lanes) {
      const Vec u = mul(load(scores + n), inverse);
      most = max(mul(u, u), most);  // skips NaN
    }
    const bool small = reduce_max(most) < largest_small_square;
    for (int64_t n = i; n < end; n += lanes) {
      const Vec x = load(scores + n), u = mul(x, inverse);
      if (small)
        store(cap_small(x, mul(u, u)), scores + n);
      else
        cap_any(cap, x, u, scores + n);
    }
  }
}

// Implements the operations of score_chain.h for a tile of scores. QK^T has already applied the scale.
template <class Layout>
struct TileScoreChain {
  const AttentionParams& call;
  const Tile& tile;
  const KeyTile& keys;
  Rows& rows;
  const Scratch& s;

  template <class F>
  void each(const F& f) const {
    for_each_score<Layout>(call, rows.count, keys.count, s.scores, f);
  }

  void scale() const {}
  void add_key_mean() const {
    if (call.softcap > 0.0f && call.k_mean) each([&](int r, int, float& x) { x += rows.mean_logit[r]; });
  }
  void soft_cap() const {
    if (!(call.softcap > 0.0f)) return;
    if constexpr (Layout::capacity > narrow_rows) {
      cap_scores(call.softcap, int64_t{keys.count} * Layout::capacity, s.scores);
    } else {
      for (int r = 0; r < rows.count; ++r)
        cap_scores(call.softcap, round_up(keys.count, lanes), s.scores + Layout::score_index(call, r, 0));
    }
  }
  void add_bias() const {
    if (call.bias.present()) apply_broadcast<Layout, AddBias>(call, call.bias, rows.bias, keys, rows, s);
  }
  void subtract_alibi() const {
    if (!call.alibi_slopes) return;
    for (int r = 0; r < rows.count; ++r) rows.distance[r] = rows.query[r] + tile.offset - keys.first;
    each([&](int r, int n, float& x) {
      x -= rows.slope[r] * __builtin_fabsf(static_cast<float>(rows.distance[r] - n));
    });
  }
  void apply_score_mod() const {}  // not supported yet: calls with score_mod are rejected
  void apply_mask() const {
    if (keys.partial) mask_by_position();
    if (call.mask.present()) apply_broadcast<Layout, ApplyMask>(call, call.mask, rows.mask, keys, rows, s);
  }

  void mask_by_position() const {
    for (int r = 0; r < rows.count; ++r) {
      const int64_t begin = rows.keys[r].begin - keys.first, end = rows.keys[r].end - keys.first;
      rows.begin[r] = static_cast<int32_t>(begin < 0 ? 0 : begin > keys.count ? keys.count : begin);
      rows.end[r] = static_cast<int32_t>(end < 0 ? 0 : end > keys.count ? keys.count : end);
    }
    each([&](int r, int n, float& x) { x = n >= rows.begin[r] && n < rows.end[r] ? x : minus_infinity; });
  }
};

// Returns the key tiles that the rows visit, within the key range of the work tile. Rows of several heads can share a
// tile, so every row is inspected.
inline KeyTiles<int64_t> keys_of_rows(const Tile& tile, const Rows& rows) {
  KeyTiles<int64_t> keys{{tile.key_end, tile.key_begin}, {0, tile.key_end}};
  for (int r = 0; r < rows.count; ++r) {
    const KeyRange& row = rows.keys[r];
    if (row.begin > keys.full.begin) keys.full.begin = row.begin;
    if (row.end < keys.full.end) keys.full.end = row.end;
    if (row.empty()) continue;
    if (row.begin < keys.some.begin) keys.some.begin = row.begin;
    if (row.end > keys.some.end) keys.some.end = row.end;
  }
  if (keys.some.begin < tile.key_begin) keys.some.begin = tile.key_begin;
  if (keys.some.end > tile.key_end) keys.some.end = tile.key_end;
  return keys;
}

// Returns key tile i of those that the rows visit. Past the last one, its count is 0.
inline KeyTile key_tile(const AttentionParams& call, const KeyTiles<int64_t>& keys, int64_t i) {
  if (i >= keys.count(call.block_n)) return {};
  const int64_t first = (keys.first(call.block_n) + i) * call.block_n;
  const int64_t end = first + call.block_n < keys.some.end ? first + call.block_n : keys.some.end;
  return {first, static_cast<int>(end - first), keys.needs_mask(first, end)};
}

// NaN-safe path: adds each non-finite element of V to the rows that see its key (score above -inf).
template <class Layout>
void add_nonfinite_v(const AttentionParams& call, const Tile& tile, const KeyTile& keys, const Rows& rows,
                     const Scratch& s) {
  for (int n = 0; n < keys.count; ++n) {
    const KeyTile one{keys.first + n, 1, false};
    widen_tile(call, tile, call.v, call.v_scale, one, call.head_dim_v, call.head_dim_v, s.row);
    for (int64_t c = 0; c < call.head_dim_v; ++c) {
      if (is_finite(s.row[c])) continue;
      for (int r = 0; r < rows.count; ++r) {
        const int64_t at = Layout::score_index(call, r, n);
        if (s.masked_scores[at] != minus_infinity) s.o[Layout::output_index(call, r, c)] += s.scores[at] * s.row[c];
      }
    }
  }
}

// Rounds P to p_terms E4M3 terms. The row sums use the unrounded weights.
template <class Layout>
void round_tile_p(const Call& call, int count, const Rows& rows, const Scratch& s) {
  if constexpr (Layout::capacity > narrow_rows) {
    round_weights(call.p_terms, int64_t{count} * Layout::capacity, s.scores);
  } else {
    for (int r = 0; r < rows.count; ++r) round_weights(call.p_terms, count, s.scores + Layout::score_index(call, r, 0));
  }
}

// next: the following key tile; its count is 0 if there is none.
template <class Layout>
void attend_tile_keys(const Call& call, const Tile& tile, const KeyTile& keys, const KeyTile& next, bool nan_safe,
                      Rows& rows, const Scratch& s) {
  const auto k = Layout::keys(call, tile, keys, s);
  plan_prefetch(call.mask, rows.mask, keys, rows);
  plan_prefetch(call.bias, rows.bias, keys, rows);
  if constexpr (Layout::capacity <= narrow_rows)
    Layout::plan_row_prefetch(call, tile, call.v, call.head_dim_v, keys,
                              Layout::passes(rows.count) * (keys.count / Layout::keys_at_once + 1), rows, s);
  Layout::scores(call, k, keys.count, rows, s);
  apply_score_chain(TileScoreChain<Layout>{call, tile, keys, rows, s});
  if (nan_safe)
    __builtin_memcpy(s.masked_scores, s.scores, sizeof(float) * static_cast<size_t>(call.block_n * Layout::capacity));
  Layout::softmax(call, keys.count, rows, s);
  if (call.p_terms > 0) round_tile_p<Layout>(call, keys.count, rows, s);
  bool nonfinite = false;
  const auto v = Layout::values(call, tile, keys, nan_safe, nonfinite, s);
  if constexpr (Layout::capacity <= narrow_rows)
    Layout::plan_row_prefetch(call, tile, call.k, call.head_dim, next, Layout::passes(rows.count) * keys.count, rows,
                              s);
  Layout::accumulate(call, v, keys.count, rows, s);
  if (nonfinite) add_nonfinite_v<Layout>(call, tile, keys, rows, s);
}

inline bool all_finite(const float* o, int64_t count) {
  uint32_t bad = 0;
  for (int64_t i = 0; i < count; ++i) bad |= is_finite(o[i]) ? 0u : 1u;
  return bad == 0;
}

// Stores the partial state for combine(): max[block_m], sum[block_m], o[row][head_dim_v].
template <class Layout>
void store_partial(const AttentionParams& call, const Tile& tile, int block_m, const Rows& rows, const Scratch& s) {
  Layout::for_each_output(call, rows, s, [&](int r, const float* o) {
    tile.partial[r] = rows.max[r];
    tile.partial[block_m + r] = rows.sum[r];
    __builtin_memcpy(tile.partial + 2 * block_m + r * call.head_dim_v, o,
                     sizeof(float) * static_cast<size_t>(call.head_dim_v));
  });
}

// Adds the sink to the denominator, divides, and writes out and lse. A row that sees no key (sum 0) gets out = 0.
// Its lse is the sink, if there is one, and otherwise -inf.
inline void finish_row(const AttentionParams& call, const Tile& tile, int64_t head, int64_t query, float max, float sum,
                       float* o) {
  float factor = sum == 0.0f ? 0.0f : 1.0f / sum;
  if (call.sinks) {
    const float sink = call.sinks[head * call.sinks_head];
    const float new_max = sink > max || sink != sink ? sink : max;
    const float shift = new_max == minus_infinity ? 0.0f : new_max;
    const float rescale = __builtin_expf(max - shift), with_sink = sum * rescale + __builtin_expf(sink - shift);
    factor = sum == 0.0f ? 0.0f : rescale / with_sink;
    sum = with_sink;
    max = new_max;
  }
  // In a row that sees no key, all elements of o are 0.
  for (int64_t c = 0; c < call.head_dim_v; ++c) o[c] *= factor;
  const int64_t row = tile.first_q + query;
  write_row(call.out, tile.batch, head, row, call.head_dim_v, o);
  if (!call.lse.present()) return;
  const float lse = sum == 0.0f ? minus_infinity : max + __builtin_logf(sum);
  static_cast<float*>(call.lse.data)[call.lse.index(tile.batch, head, row)] = lse;
}

template <class Layout>
void store_rows(const AttentionParams& call, const Tile& tile, const Rows& rows, const Scratch& s) {
  Layout::for_each_output(call, rows, s, [&](int r, float* o) {
    finish_row(call, tile, rows.head[r], rows.query[r], rows.max[r], rows.sum[r], o);
  });
}

// Without softcap, k_mean shifts all logits of a row equally. The weights do not change, and the shift is added to the
// maximum.
inline void add_mean_logits_to_max(const AttentionParams& call, Rows& rows) {
  if (call.k_mean == nullptr || call.softcap > 0.0f) return;
  for (int r = 0; r < rows.count; ++r)
    if (rows.max[r] != minus_infinity) rows.max[r] += rows.mean_logit[r];
}

template <class Layout>
void attend(const Call& call, const Tile& tile, int block_m, void* memory) {
  const Scratch s(call, Layout::capacity, memory);
  Rows rows;
  init_rows(call, tile, Layout::capacity, rows);
  init_broadcast(call.bias, tile, rows, rows.bias);
  init_broadcast(call.mask, tile, rows, rows.mask);
  const KeyTiles<int64_t> keys = keys_of_rows(tile, rows);
  Layout::load_queries(call, tile, rows, s);
  if (call.k_mean) Layout::load_mean_logits(call, tile, rows, s);
  const int64_t o_floats = Scratch::align(call.head_dim_v) * Layout::capacity;
  // The first pass assumes finite V. If the output is not finite, the tile is recomputed on the NaN-safe path, with the
  // same tiles in the same order.
  for (int pass = 0; pass < 2; ++pass) {
    const bool nan_safe = pass == 1;
    for (int64_t i = 0; i < o_floats; ++i) s.o[i] = 0.0f;
    for (int r = 0; r < Layout::capacity; ++r) {
      rows.max[r] = minus_infinity;
      rows.sum[r] = 0.0f;
    }
    for (int64_t i = 0; i < keys.count(call.block_n); ++i)
      attend_tile_keys<Layout>(call, tile, key_tile(call, keys, i), key_tile(call, keys, i + 1), nan_safe, rows, s);
    if (nan_safe || all_finite(s.o, o_floats)) break;
  }
  add_mean_logits_to_max(call, rows);
  if (tile.partial) {
    store_partial<Layout>(call, tile, block_m, rows, s);
  } else {
    store_rows<Layout>(call, tile, rows, s);
  }
}

// Combines the partial states of `parts` splits, which are `stride` floats apart. The order is fixed, so that results
// are deterministic.
inline void combine_tile(const AttentionParams& call, const Tile& tile, int block_m, const float* states,
                         int64_t stride, int64_t parts, float* row) {
  for (int r = 0; r < tile.rows; ++r) {
    float max = minus_infinity, sum = 0.0f;
    for (int64_t p = 0; p < parts; ++p) {
      const float m = states[p * stride + r];
      if (m > max || m != m) max = m;
    }
    const float shift = max == minus_infinity ? 0.0f : max;
    for (int64_t c = 0; c < call.head_dim_v; ++c) row[c] = 0.0f;
    for (int64_t p = 0; p < parts; ++p) {
      const float* state = states + p * stride;
      if (state[block_m + r] == 0.0f) continue;  // this split saw no key
      const float weight = __builtin_expf(state[r] - shift);
      sum += weight * state[block_m + r];
      const float* o = state + 2 * block_m + r * call.head_dim_v;
      for (int64_t c = 0; c < call.head_dim_v; ++c) row[c] += weight * o[c];
    }
    const int64_t f = tile.first_row + r;
    finish_row(call, tile, tile.head_q + f / tile.seqlen_q, f % tile.seqlen_q, max, sum, row);
  }
}

// The functions of an AttentionKernel.
inline size_t scratch_bytes(const AttentionParams& call, int block_m) {
  return static_cast<size_t>(Scratch::floats(call, block_m)) * sizeof(float);
}

inline void attend_any(const Call& call, const Tile& tile, int block_m, void* scratch) {
  switch (block_m) {
    case 64: attend<Wide<64>>(call, tile, block_m, scratch); break;
    case 32: attend<Wide<32>>(call, tile, block_m, scratch); break;
    case 16: attend<Wide<16>>(call, tile, block_m, scratch); break;
    default: attend<Narrow>(call, tile, block_m, scratch); break;
  }
}

inline void combine_any(const AttentionParams& call, const Tile& tile, int block_m, const float* states, int64_t stride,
                        int64_t parts, void* scratch) {
  combine_tile(call, tile, block_m, states, stride, parts, static_cast<float*>(scratch));
}

}  // namespace
}  // namespace rapt::cpu
