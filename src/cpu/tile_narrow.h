// Narrow layout: vector lanes are channels. Used for at most 8 rows (decoding), where most lanes of the wide layout
// would be idle. A group of rows shares each load of K and V; with one row, FP8 is converted in registers. Arrays:
// scores[r][block_n], o[r][dv rounded up], q[r][d rounded up], zero padded. Included only through attention_tile.h by
// the isa_*.cpp units (internal linkage).
#pragma once

#include "cpu/tile_codes.h"
#include "cpu/tile_common.h"

namespace rapt::cpu {
namespace {

struct Narrow {
  static constexpr int capacity = narrow_rows;
  // So many rows share each load of K and V: a tile of K does not stay in the L1 cache until the next row reads it.
  // Limited by the registers for sums.
  static constexpr int rows_at_once = lanes >= 16 ? 4 : 2;
  static constexpr int keys_at_once = 4;

  // How often a tile of `rows` rows reads each row of K or V.
  static constexpr int passes(int rows) { return rows / rows_at_once + rows % rows_at_once; }
  // Calls f(Index<n>, first row) for groups of rows that share loads: n is rows_at_once or 1.
  template <class F>
  static void each_group(int rows, const F& f) {
    int r = 0;
    for (; r + rows_at_once <= rows; r += rows_at_once) f(Index<rows_at_once>{}, r);
    for (; r < rows; ++r) f(Index<1>{}, r);
  }

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
    if (t.column != 1 || keys.count == 0) return;
    const int64_t size = bytes_of(t.dtype);
    if (!of.are_adjacent(depth)) {
      of.write_addresses(keys, s.next_rows);
      rows.next = RowPrefetch::of(s.next_rows, keys.count, size * depth, steps);
      return;
    }
    if (!call.pages.present() && tile.rows == 1) return;  // the products are as fast as the hardware prefetcher
    int count = 0, longest = 0;
    of.each_page(keys, [&](const char* row, int, int in_page) {
      s.next_rows[count++] = row;
      longest = in_page > longest ? in_page : longest;
    });
    rows.next = RowPrefetch::of(s.next_rows, count, size * of.pitch() * longest, steps);
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

  // Rows of q or o, or of scores, `step` floats apart.
  struct FloatRows {
    float* first = nullptr;
    int64_t step = 0;
    float* operator[](int r) const { return first + r * step; }
  };

  // dst[r][n + i] = scale * sum over d of q[r][d] * k[n + i][d], r < rows, i < keys.
  template <int rows, int keys, class RowAt>
  static void dot(const FloatRows& q, const RowAt& k, int64_t n, int64_t depth, float scale, const FloatRows& dst) {
    Vec sum[rows][keys];
    const float* row[keys];
    unroll<keys>([&](auto i) {
      row[i.value] = static_cast<const float*>(k(n + i.value));
      unroll<rows>([&](auto r) { sum[r.value][i.value] = zero(); });
    });
    for (int64_t d = 0; d < depth; d += lanes) {
      Vec y[keys];
      unroll<keys>([&](auto i) { y[i.value] = load(row[i.value] + d); });
      unroll<rows>([&](auto r) {
        const Vec x = load(q[r.value] + d);
        unroll<keys>([&](auto i) { sum[r.value][i.value] = fma(x, y[i.value], sum[r.value][i.value]); });
      });
    }
    unroll<rows>([&](auto r) {
      unroll<keys>([&](auto i) { dst[r.value][n + i.value] = reduce_add(sum[r.value][i.value]) * scale; });
    });
  }

  static void load_mean_logits(const AttentionParams& call, const Tile& tile, Rows& rows, const Scratch& s) {
    const int64_t padded = Scratch::align(call.head_dim);
    for (int64_t d = 0; d < padded; ++d) s.row[d] = d < call.head_dim ? key_mean(call, tile, d) : 0.0f;
    const auto mean = [&](int64_t) { return static_cast<const void*>(s.row); };
    for (int r = 0; r < rows.count; ++r)
      dot<1, 1>({s.q + r * padded, 0}, mean, 0, padded, call.scale, {&rows.mean_logit[r], 0});
  }

  static void scores(const AttentionParams& call, const RowOperand& k, int count, Rows& rows, const Scratch& s) {
    if (k.factors != nullptr) return scores_of_codes(k, count, call.head_dim, call.scale, s.q, rows.next, s.scores);
    const int64_t depth = round_up(call.head_dim, lanes), padded = Scratch::align(call.head_dim);
    with_rows(k, [&](const auto& row) {
      each_group(rows.count, [&](auto group, int r) {
        const FloatRows q{s.q + r * padded, padded}, dst{s.scores + score_index(call, r, 0), call.block_n};
        int64_t n = 0;
        for (; n + keys_at_once <= count; n += keys_at_once) {
          rows.next.step();
          dot<group.value, keys_at_once>(q, row, n, depth, call.scale, dst);
        }
        for (; n < count; ++n) dot<group.value, 1>(q, row, n, depth, call.scale, dst);
      });
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

  // o[r] = o[r] * rescale[r] + sum over n of p[r][n] * v[n], r < rows, for some vectors from channel c on.
  template <int rows, int vectors, class RowAt>
  static void accumulate_pv(const FloatRows& p, const RowAt& v, int64_t c, int count, const float* rescale,
                            RowPrefetch& next, const FloatRows& o) {
    Vec sum[rows][vectors];
    unroll<rows>([&](auto r) { unroll<vectors>([&](auto i) { sum[r.value][i.value] = zero(); }); });
    for (int n = 0; n < count; ++n) {
      next.step();
      const float* const row = static_cast<const float*>(v(n)) + c;
      Vec y[vectors];
      unroll<vectors>([&](auto i) { y[i.value] = load(row + i.value * lanes); });
      unroll<rows>([&](auto r) {
        const Vec weight = splat(p[r.value][n]);
        unroll<vectors>([&](auto i) { sum[r.value][i.value] = fma(weight, y[i.value], sum[r.value][i.value]); });
      });
    }
    unroll<rows>([&](auto r) {
      unroll<vectors>([&](auto i) {
        float* at = o[r.value] + c + i.value * lanes;
        store(fma(load(at), splat(rescale[r.value]), sum[r.value][i.value]), at);
      });
    });
  }

  static void accumulate(const AttentionParams& call, const RowOperand& v, int count, Rows& rows, const Scratch& s) {
    if (v.factors != nullptr)
      return accumulate_codes(v, count, call.head_dim_v, s.scores, rows.rescale[0], rows.next, s.o);
    const int64_t vectors = round_up(call.head_dim_v, lanes) / lanes;
    with_rows(v, [&](const auto& row) {
      each_group(rows.count, [&](auto group, int r) {
        constexpr int vectors_at_once = group.value == 1 ? 8 : 4;
        const FloatRows p{s.scores + score_index(call, r, 0), call.block_n},
            o{s.o + output_index(call, r, 0), Scratch::align(call.head_dim_v)};
        const float* const rescale = rows.rescale + r;
        int64_t i = 0;
        for (; i + vectors_at_once <= vectors; i += vectors_at_once)
          accumulate_pv<group.value, vectors_at_once>(p, row, i * lanes, count, rescale, rows.next, o);
        for (; i < vectors; ++i) accumulate_pv<group.value, 1>(p, row, i * lanes, count, rescale, rows.next, o);
      });
    });
  }
};

}  // namespace
}  // namespace rapt::cpu
