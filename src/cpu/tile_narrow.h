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

  static RowOperand keys(const AttentionParams& call, const Tile& tile, const KeyTile& keys, const Scratch& s) {
    return operand(call, tile, call.k, call.k_scale, keys, call.head_dim, false, s.key_rows, s.k);
  }
  static RowOperand values(const AttentionParams& call, const Tile& tile, const KeyTile& keys, bool nan_safe,
                           bool& nonfinite, const Scratch& s) {
    const RowOperand v = operand(call, tile, call.v, call.v_scale, keys, call.head_dim_v, nan_safe, s.key_rows, s.v);
    nonfinite = nan_safe && sanitize(keys.count, call.head_dim_v, round_up(call.head_dim_v, 16), s.v);
    return v;
  }

  // K or V of a key tile: its rows in the tensor if vectors can read them, otherwise floats in scratch. copied: always
  // in scratch.
  static RowOperand operand(const AttentionParams& call, const Tile& tile, const TensorRef& t, const ScaleRef& scale,
                            const KeyTile& keys, int64_t depth, bool copied, const void** list, float* scratch) {
    RowOperand result;
    if (!copied && code_operand(call, tile, t, scale, keys, depth, list, scratch, result)) return result;
    if (!copied && readable_in_place(t, scale) && depth % lanes == 0)
      return rows_in_tensor(KeyRows(call, tile, t), keys, list);
    const int64_t padded = round_up(depth, 16);
    widen_tile(call, tile, t, scale, keys, depth, padded, scratch);
    result = {};
    result.first = reinterpret_cast<const char*>(scratch), result.step = padded * int64_t{sizeof(float)};
    return result;
  }

  // Plans to prefetch the rows of K or V of a key tile within `steps` steps.
  static void plan_row_prefetch(const AttentionParams& call, const Tile& tile, const TensorRef& t, int64_t depth,
                                const KeyTile& keys, int64_t steps, Rows& rows, const Scratch& s) {
    const KeyRows of(call, tile, t);
    rows.next = {};
    if (of.are_adjacent(depth) || t.column != 1 || keys.count == 0) return;
    of.write_addresses(keys, s.next_rows);
    rows.next.rows = s.next_rows, rows.next.count = keys.count, rows.next.bytes = depth * bytes_of(t.dtype);
    const int64_t lines = keys.count * ((rows.next.bytes + 63) / 64);
    rows.next.lines_at_once = static_cast<int>((lines + steps - 1) / steps);
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

  // dst[n + i] = scale * sum over d of q[d] * k[n + i][d], i < keys.
  template <int keys, class RowAt>
  static void dot(const float* q, const RowAt& k, int64_t n, int64_t depth, float scale, float* dst) {
    Vec sum[keys];
    const float* row[keys];
    unroll<keys>([&](auto i) {
      row[i.value] = static_cast<const float*>(k(n + i.value));
      sum[i.value] = zero();
    });
    for (int64_t d = 0; d < depth; d += lanes) {
      const Vec x = load(q + d);
      unroll<keys>([&](auto i) { sum[i.value] = fma(x, load(row[i.value] + d), sum[i.value]); });
    }
    unroll<keys>([&](auto i) { dst[n + i.value] = reduce_add(sum[i.value]) * scale; });
  }

  static void load_mean_logits(const AttentionParams& call, const Tile& tile, Rows& rows, const Scratch& s) {
    const int64_t padded = Scratch::align(call.head_dim);
    for (int64_t d = 0; d < padded; ++d) s.row[d] = d < call.head_dim ? key_mean(call, tile, d) : 0.0f;
    const auto mean = [&](int64_t) { return static_cast<const void*>(s.row); };
    for (int r = 0; r < rows.count; ++r) dot<1>(s.q + r * padded, mean, 0, padded, call.scale, &rows.mean_logit[r]);
  }

  static void scores(const AttentionParams& call, const RowOperand& k, int count, Rows& rows, const Scratch& s) {
    if (k.factors != nullptr) return scores_of_codes(k, count, call.head_dim, call.scale, s.q, rows.next, s.scores);
    constexpr int keys_at_once = 4;
    const int64_t depth = round_up(call.head_dim, lanes), padded = Scratch::align(call.head_dim);
    with_rows(k, [&](const auto& row) {
      for (int r = 0; r < rows.count; ++r) {
        const float* q = s.q + r * padded;
        float* dst = s.scores + score_index(call, r, 0);
        int64_t n = 0;
        for (; n + keys_at_once <= count; n += keys_at_once) {
          rows.next.step();
          dot<keys_at_once>(q, row, n, depth, call.scale, dst);
        }
        for (; n < count; ++n) dot<1>(q, row, n, depth, call.scale, dst);
      }
    });
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

  // o = o * rescale + sum over n of p[n] * v[n], for some vectors from channel c on.
  template <int vectors, class RowAt>
  static void accumulate_pv(const float* p, const RowAt& v, int64_t c, int count, float rescale, RowPrefetch& next,
                            float* o) {
    Vec sum[vectors];
    unroll<vectors>([&](auto i) { sum[i.value] = zero(); });
    for (int n = 0; n < count; ++n) {
      next.step();
      const float* const row = static_cast<const float*>(v(n)) + c;
      const Vec weight = splat(p[n]);
      unroll<vectors>([&](auto i) { sum[i.value] = fma(weight, load(row + i.value * lanes), sum[i.value]); });
    }
    unroll<vectors>([&](auto i) {
      float* at = o + i.value * lanes;
      store(fma(load(at), splat(rescale), sum[i.value]), at);
    });
  }

  static void accumulate(const AttentionParams& call, const RowOperand& v, int count, Rows& rows, const Scratch& s) {
    if (v.factors != nullptr)
      return accumulate_codes(v, count, call.head_dim_v, s.scores, rows.rescale[0], rows.next, s.o);
    constexpr int vectors_at_once = 8;
    const int64_t vectors = round_up(call.head_dim_v, lanes) / lanes;
    with_rows(v, [&](const auto& row) {
      for (int r = 0; r < rows.count; ++r) {
        const float* p = s.scores + score_index(call, r, 0);
        float* o = s.o + output_index(call, r, 0);
        const float rescale = rows.rescale[r];
        int64_t i = 0;
        for (; i + vectors_at_once <= vectors; i += vectors_at_once)
          accumulate_pv<vectors_at_once>(p, row, i * lanes, count, rescale, rows.next, o + i * lanes);
        for (; i < vectors; ++i) accumulate_pv<1>(p, row, i * lanes, count, rescale, rows.next, o + i * lanes);
      }
    });
  }
};

}  // namespace
}  // namespace rapt::cpu
