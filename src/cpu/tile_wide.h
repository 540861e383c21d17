// Wide layout: vector lanes are query rows. Scores, softmax and output need no shuffles, and K and V are read where
// they lie, one broadcast an element. scores[n][block_m], o[c][block_m], q[d][block_m]. Included only through
// attention_tile.h by the isa_*.cpp units (internal linkage).
#pragma once

#include "cpu/tile_common.h"

namespace rapt::cpu {
namespace {

// sum over `depth` of a[depth][row lanes] * b[outer][depth], for `vectors` vectors of rows and `outer` columns kept in
// registers. Serves Q.K^T (outer = keys, depth = channels) and P.V (outer = channels, depth = keys).
// Dot::step(a, b, sum) is sum + a * b of what one 32-bit element holds.
template <class Dot, int vectors, int outer>
[[gnu::always_inline]] inline void product(const float* a, int64_t a_stride, const float* b, int64_t b_outer,
                                           int64_t b_depth, int64_t depth, Vec (&sum)[outer][vectors]) {
  unroll<outer>([&](auto o) { unroll<vectors>([&](auto v) { sum[o.value][v.value] = zero(); }); });
  for (int64_t d = 0; d < depth; ++d, a += a_stride, b += b_depth) {
    Vec rows[vectors];
    unroll<vectors>([&](auto v) { rows[v.value] = load(a + v.value * lanes); });
    unroll<outer>([&](auto o) {
      const Vec column = splat(b[o.value * b_outer]);
      unroll<vectors>([&](auto v) { sum[o.value][v.value] = Dot::step(rows[v.value], column, sum[o.value][v.value]); });
    });
  }
}

struct FloatDot {
  static Vec step(Vec a, Vec b, Vec sum) { return fma(a, b, sum); }
};

template <int block_m>
struct Wide {
  static constexpr int capacity = block_m;
  static constexpr bool many_registers = lanes == 16;  // AVX-512: 32 registers
  static constexpr int chunk =
      many_registers ? (block_m / lanes < 4 ? block_m / lanes : 4) : 2;       // vectors of rows at once
  static constexpr int columns = many_registers ? (chunk == 4 ? 6 : 12) : 6;  // columns at once

  static int64_t score_index(const AttentionCall&, int r, int n) { return int64_t{n} * block_m + r; }
  static int64_t output_index(const AttentionCall&, int r, int64_t c) { return c * block_m + r; }

  static Operand keys(const AttentionCall& call, const Tile& tile, const KeyTile& keys, const Scratch& s) {
    return float_operand(tile, call.k, call.k_scale, keys, call.head_dim, readable_in_place(call.k, call.k_scale), s.k);
  }
  static Operand values(const AttentionCall& call, const Tile& tile, const KeyTile& keys, bool exact, bool& nonfinite,
                        const Scratch& s) {
    const bool in_place = !exact && readable_in_place(call.v, call.v_scale);
    const Operand v = float_operand(tile, call.v, call.v_scale, keys, call.head_dim_v, in_place, s.v);
    nonfinite = exact && sanitize(keys.count, call.head_dim_v, v.stride, s.v);
    return v;
  }

  static void load_queries(const AttentionCall& call, const Tile& tile, const Rows& rows, const Scratch& s) {
    for (int r = 0; r < block_m; ++r) {
      if (r < rows.count) {
        read_query(call, tile, rows.head[r], rows.query[r], s.row);
      } else {
        for (int64_t d = 0; d < call.head_dim; ++d) s.row[d] = 0.0f;
      }
      for (int64_t d = 0; d < call.head_dim; ++d) s.q[d * block_m + r] = s.row[d];
    }
  }

  // f(first column, Index<number of columns>) over `count` columns: blocks of `columns`, then 4, then 1.
  template <class F>
  static void for_columns(int64_t count, const F& f) {
    int64_t i = 0;
    for (; i + columns <= count; i += columns) f(i, Index<columns>{});
    for (; i + 4 <= count; i += 4) f(i, Index<4>{});
    for (; i < count; ++i) f(i, Index<1>{});
  }

  static void scores(const AttentionCall& call, const Operand& k, int count, const Rows&, const Scratch& s) {
    scores_by<FloatDot>(call, k, call.head_dim, count, s);
  }
  static void accumulate(const AttentionCall& call, const Operand& v, int count, const Rows& rows, const Scratch& s) {
    accumulate_by<FloatDot>(call, v, s.scores, count, rows, s);
  }

  template <class Dot>
  static void scores_by(const AttentionCall& call, const Operand& k, int64_t depth, int count, const Scratch& s) {
    const Vec scale = splat(call.scale);
    for (int r = 0; r < block_m; r += chunk * lanes) {
      for_columns(count, [&](int64_t n, auto width) {
        Vec sum[width.value][chunk];
        product<Dot, chunk, width.value>(s.q + r, block_m, k.data + n * k.stride, k.stride, 1, depth, sum);
        float* dst = s.scores + n * block_m + r;
        unroll<width.value>([&](auto o) {
          unroll<chunk>(
              [&](auto v) { store(mul(sum[o.value][v.value], scale), dst + o.value * block_m + v.value * lanes); });
        });
      });
    }
  }

  static void softmax(const AttentionCall&, int count, Rows& rows, const Scratch& s) {
    for (int r = 0; r < block_m; r += lanes) {
      const Vec old_max = load(rows.max + r);
      Vec new_max = old_max;
      for (int n = 0; n < count; ++n) new_max = max(new_max, load(s.scores + n * block_m + r));
      const Vec shift = zero_if_equal(new_max, splat(minus_infinity));  // an all-hidden tile: exp(-inf - 0) = 0
      const Vec rescale = exp_negative(sub(old_max, shift));
      Vec sum = zero();
      for (int n = 0; n < count; ++n) {
        float* score = s.scores + n * block_m + r;
        const Vec p = exp_negative(sub(load(score), shift));
        store(p, score);
        sum = add(sum, p);
      }
      store(new_max, rows.max + r);
      store(rescale, rows.rescale + r);
      store(fma(load(rows.sum + r), rescale, sum), rows.sum + r);
    }
  }

  template <class Dot>
  static void accumulate_by(const AttentionCall& call, const Operand& v, const float* p, int64_t depth,
                            const Rows& rows, const Scratch& s) {
    for (int r = 0; r < block_m; r += chunk * lanes) {
      for_columns(call.head_dim_v, [&](int64_t c, auto width) {
        Vec sum[width.value][chunk];
        product<Dot, chunk, width.value>(p + r, block_m, v.data + c, 1, v.stride, depth, sum);
        float* o = s.o + c * block_m + r;
        unroll<width.value>([&](auto i) {
          unroll<chunk>([&](auto j) {
            float* at = o + i.value * block_m + j.value * lanes;
            store(fma(load(at), load(rows.rescale + r + j.value * lanes), sum[i.value][j.value]), at);
          });
        });
      });
    }
  }
};

}  // namespace
}  // namespace rapt::cpu
