// Narrow layout: vector lanes are channels. Used for at most 8 rows (decoding), where most lanes of the wide layout
// would be idle. K and V are read once per row of the tile; with one row, FP8 is converted in registers. Arrays:
// scores[r][block_n], o[r][dv rounded up], q[r][d rounded up], zero padded. Included only through attention_tile.h by
// the isa_*.cpp units (internal linkage).
#pragma once

#include "cpu/tile_codes.h"
#include "cpu/tile_common.h"

namespace rapt::cpu {
namespace {

struct Narrow {
  static constexpr int capacity = narrow_rows;

  static int64_t score_index(const AttentionParams& call, int r, int n) { return r * int64_t{call.block_n} + n; }
  static int64_t output_index(const AttentionParams& call, int r, int64_t c) {
    return r * Scratch::align(call.head_dim_v) + c;
  }

  static Operand keys(const AttentionParams& call, const Tile& tile, const KeyTile& keys, const Scratch& s) {
    Operand k;
    if (code_operand(call, tile, call.k, call.k_scale, keys, call.head_dim, s.k, k)) return k;
    const bool in_place = readable_in_place(call.k, call.k_scale) && call.head_dim % lanes == 0;
    return float_operand(call, tile, call.k, call.k_scale, keys, call.head_dim, in_place, s.k);
  }
  static Operand values(const AttentionParams& call, const Tile& tile, const KeyTile& keys, bool nan_safe,
                        bool& nonfinite, const Scratch& s) {
    Operand v;
    if (!nan_safe && code_operand(call, tile, call.v, call.v_scale, keys, call.head_dim_v, s.v, v)) return v;
    const bool in_place = !nan_safe && readable_in_place(call.v, call.v_scale) && call.head_dim_v % lanes == 0;
    v = float_operand(call, tile, call.v, call.v_scale, keys, call.head_dim_v, in_place, s.v);
    nonfinite = nan_safe && sanitize(keys.count, call.head_dim_v, v.stride, s.v);
    return v;
  }

  static void load_queries(const AttentionParams& call, const Tile& tile, const Rows& rows, const Scratch& s) {
    const int64_t padded = Scratch::align(call.head_dim);
    for (int r = 0; r < rows.count; ++r) {
      float* dst = s.q + r * padded;
      read_query(call, tile, rows.head[r], rows.query[r], dst);
      for (int64_t d = call.head_dim; d < padded; ++d) dst[d] = 0.0f;
    }
  }

  template <class F>
  static void for_each_output(const AttentionParams& call, const Rows& rows, const Scratch& s, const F& f) {
    for (int r = 0; r < rows.count; ++r) f(r, s.o + output_index(call, r, 0));
  }

  template <int keys>
  static void dot(const float* q, const float* k, int64_t k_stride, int64_t depth, float scale, float* dst) {
    Vec sum[keys];
    unroll<keys>([&](auto i) { sum[i.value] = zero(); });
    for (int64_t d = 0; d < depth; d += lanes) {
      const Vec x = load(q + d);
      unroll<keys>([&](auto i) { sum[i.value] = fma(x, load(k + i.value * k_stride + d), sum[i.value]); });
    }
    unroll<keys>([&](auto i) { dst[i.value] = reduce_add(sum[i.value]) * scale; });
  }

  static void load_mean_logits(const AttentionParams& call, const Tile& tile, Rows& rows, const Scratch& s) {
    const int64_t padded = Scratch::align(call.head_dim);
    for (int64_t d = 0; d < padded; ++d) s.row[d] = d < call.head_dim ? key_mean(call, tile, d) : 0.0f;
    for (int r = 0; r < rows.count; ++r) dot<1>(s.q + r * padded, s.row, 0, padded, call.scale, &rows.mean_logit[r]);
  }

  static void scores(const AttentionParams& call, const Operand& k, int count, const Rows& rows, const Scratch& s) {
    if (k.codes != nullptr) return scores_of_codes(k, count, call.head_dim, call.scale, s.q, s.scores);
    constexpr int keys_at_once = 4;
    const int64_t depth = round_up(call.head_dim, lanes), padded = Scratch::align(call.head_dim);
    for (int r = 0; r < rows.count; ++r) {
      const float* q = s.q + r * padded;
      float* dst = s.scores + score_index(call, r, 0);
      int n = 0;
      for (; n + keys_at_once <= count; n += keys_at_once) {
        dot<keys_at_once>(q, k.data + n * k.stride, k.stride, depth, call.scale, dst + n);
      }
      for (; n < count; ++n) dot<1>(q, k.data + n * k.stride, k.stride, depth, call.scale, dst + n);
    }
  }

  static void softmax(const AttentionParams& call, int count, Rows& rows, const Scratch& s) {
    const int padded = static_cast<int>(round_up(count, lanes));
    for (int r = 0; r < rows.count; ++r) {
      float* scores = s.scores + score_index(call, r, 0);
      for (int n = count; n < padded; ++n) scores[n] = minus_infinity;
      Vec max_lanes = splat(minus_infinity);
      for (int n = 0; n < padded; n += lanes) max_lanes = max(max_lanes, load(scores + n));
      const float old_max = rows.max[r], tile_max = reduce_max(max_lanes);
      const float new_max = tile_max > old_max ? tile_max : old_max;
      const float shift = new_max == minus_infinity ? 0.0f : new_max;
      Vec sum = zero();
      for (int n = 0; n < padded; n += lanes) {
        const Vec p = exp_negative(sub(load(scores + n), splat(shift)));
        store(p, scores + n);
        sum = add(sum, p);
      }
      alignas(64) float rescale[lanes];
      store(exp_negative(splat(old_max - shift)), rescale);
      rows.max[r] = new_max;
      rows.rescale[r] = rescale[0];
      rows.sum[r] = rows.sum[r] * rescale[0] + reduce_add(sum);
    }
  }

  template <int vectors>
  static void accumulate_pv(const float* p, const float* v, int64_t v_stride, int count, float rescale, float* o) {
    Vec sum[vectors];
    unroll<vectors>([&](auto i) { sum[i.value] = zero(); });
    for (int n = 0; n < count; ++n, v += v_stride) {
      const Vec weight = splat(p[n]);
      unroll<vectors>([&](auto i) { sum[i.value] = fma(weight, load(v + i.value * lanes), sum[i.value]); });
    }
    unroll<vectors>([&](auto i) {
      float* at = o + i.value * lanes;
      store(fma(load(at), splat(rescale), sum[i.value]), at);
    });
  }

  static void accumulate(const AttentionParams& call, const Operand& v, int count, const Rows& rows, const Scratch& s) {
    if (v.codes != nullptr) return accumulate_codes(v, count, call.head_dim_v, s.scores, rows.rescale[0], s.o);
    constexpr int vectors_at_once = 8;
    const int64_t vectors = round_up(call.head_dim_v, lanes) / lanes;
    for (int r = 0; r < rows.count; ++r) {
      const float* p = s.scores + score_index(call, r, 0);
      float* o = s.o + output_index(call, r, 0);
      int64_t i = 0;
      for (; i + vectors_at_once <= vectors; i += vectors_at_once)
        accumulate_pv<vectors_at_once>(p, v.data + i * lanes, v.stride, count, rows.rescale[r], o + i * lanes);
      for (; i < vectors; ++i) accumulate_pv<1>(p, v.data + i * lanes, v.stride, count, rows.rescale[r], o + i * lanes);
    }
  }
};

}  // namespace
}  // namespace rapt::cpu
