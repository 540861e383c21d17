// Wide layout: vector lanes are query rows. Softmax and both products need no shuffles. Elements of K and V are
// broadcast directly from memory. Arrays: scores[n][block_m], o[c][block_m], q[d][block_m]. Included only through
// attention_tile.h by the isa_*.cpp units (internal linkage).
#pragma once

#include "cpu/tile_common.h"

namespace rapt::cpu {
namespace {

// The GEMM microkernel: sum[outer][rows] = sum over depth of a[depth][rows] * b[outer][depth], with `vectors` vectors
// of rows and `outer` columns in registers. QK^T: outer = keys, depth = channels. PV: outer = channels, depth = keys.
// Dot::step(a, b, sum) = sum + a * b for one 32-bit element, which holds one float or two bf16.
template <class Dot, int vectors, int outer>
[[gnu::always_inline]] inline void microkernel(const float* a, int64_t a_stride, const float* b, int64_t b_outer,
                                               int64_t b_depth, int64_t depth, Vec (&sum)[outer][vectors]) {
  unroll<outer>([&](auto o) { unroll<vectors>([&](auto v) { sum[o.value][v.value] = zero(); }); });
// Unrolling by 4 is 2% faster (measured).
#if defined(__clang__)
#pragma unroll 4
#else
#pragma GCC unroll 4
#endif
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
      many_registers ? (block_m / lanes < 4 ? block_m / lanes : 4) : 2;       // vectors of rows in registers
  static constexpr int columns = many_registers ? (chunk == 4 ? 6 : 12) : 6;  // columns in registers

  static int64_t score_index(const AttentionParams&, int r, int n) { return int64_t{n} * block_m + r; }
  static int64_t output_index(const AttentionParams&, int r, int64_t c) { return c * block_m + r; }

  static Operand keys(const AttentionParams& call, const Tile& tile, const KeyTile& keys, const Scratch& s) {
    return float_operand(call, tile, call.k, call.k_scale, keys, call.head_dim, readable_in_place(call.k, call.k_scale),
                         s.k);
  }
  static Operand values(const AttentionParams& call, const Tile& tile, const KeyTile& keys, bool nan_safe,
                        bool& nonfinite, const Scratch& s) {
    const bool in_place = !nan_safe && readable_in_place(call.v, call.v_scale);
    const Operand v = float_operand(call, tile, call.v, call.v_scale, keys, call.head_dim_v, in_place, s.v);
    nonfinite = nan_safe && sanitize(keys.count, call.head_dim_v, v.stride, s.v);
    return v;
  }

  static void load_queries(const AttentionParams& call, const Tile& tile, const Rows& rows, const Scratch& s) {
    const int64_t padded = Scratch::align(call.head_dim);
    for (int first = 0; first < block_m; first += Scratch::rows_at_once) {
      for (int i = 0; i < Scratch::rows_at_once; ++i) {
        float* row = s.row + i * padded;
        if (first + i < rows.count) {
          read_query(call, tile, rows.head[first + i], rows.query[first + i], row);
        } else {
          for (int64_t d = 0; d < padded; ++d) row[d] = 0.0f;
        }
      }
      for (int64_t d = 0; d < padded; d += 16) transpose_16x16(s.row + d, padded, s.q + d * block_m + first, block_m);
    }
  }

  static void load_mean_logits(const AttentionParams& call, const Tile& tile, Rows& rows, const Scratch& s) {
    const Vec scale = splat(call.scale);
    for (int r = 0; r < block_m; r += lanes) {
      Vec sum = zero();
      for (int64_t d = 0; d < call.head_dim; ++d)
        sum = fma(load(s.q + d * block_m + r), splat(key_mean(call, tile, d)), sum);
      store(mul(sum, scale), rows.mean_logit + r);
    }
  }

  // Calls f(r, output row r as floats) for every row.
  template <class F>
  static void for_each_output(const AttentionParams& call, const Rows& rows, const Scratch& s, const F& f) {
    const int64_t padded = Scratch::align(call.head_dim_v);
    for (int first = 0; first < rows.count; first += Scratch::rows_at_once) {
      for (int64_t c = 0; c < padded; c += 16) transpose_16x16(s.o + c * block_m + first, block_m, s.row + c, padded);
      for (int r = first; r < rows.count && r < first + Scratch::rows_at_once; ++r) f(r, s.row + (r - first) * padded);
    }
  }

  // Calls f(first column, Index<number of columns>) over `count` columns, in blocks of `columns`, then 4, then 1.
  template <class F>
  static void for_columns(int64_t count, const F& f) {
    int64_t i = 0;
    for (; i + columns <= count; i += columns) f(i, Index<columns>{});
    for (; i + 4 <= count; i += 4) f(i, Index<4>{});
    for (; i < count; ++i) f(i, Index<1>{});
  }

  static void scores(const AttentionParams& call, const Operand& k, int count, const Rows& rows, const Scratch& s) {
    scores_by<FloatDot>(call, k, call.head_dim, count, rows, s);
  }
  static void accumulate(const AttentionParams& call, const Operand& v, int count, const Rows& rows, const Scratch& s) {
    accumulate_by<FloatDot>(call, v, s.scores, count, rows, s);
  }

  template <class Dot>
  static void scores_by(const AttentionParams& call, const Operand& k, int64_t depth, int count, const Rows& rows,
                        const Scratch& s) {
    const Vec scale = splat(call.scale);
    for (int r = 0; r < block_m; r += chunk * lanes) {
      for_columns(count, [&](int64_t n, auto width) {
        if (r == 0) prefetch_bias_and_mask(rows, n, n + width.value, count);
        Vec sum[width.value][chunk];
        microkernel<Dot, chunk, width.value>(s.q + r, block_m, k.data + n * k.stride, k.stride, 1, depth, sum);
        float* dst = s.scores + n * block_m + r;
        unroll<width.value>([&](auto o) {
          unroll<chunk>(
              [&](auto v) { store(mul(sum[o.value][v.value], scale), dst + o.value * block_m + v.value * lanes); });
        });
      });
    }
  }

  // Processes `chunk` vectors of rows together: independent chains of maxima and sums hide latency.
  static void softmax(const AttentionParams&, int count, Rows& rows, const Scratch& s) {
    for (int r = 0; r < block_m; r += chunk * lanes) {
      float* const scores = s.scores + r;
      Vec max_of[chunk], shift[chunk], sum[chunk];
      unroll<chunk>([&](auto v) { max_of[v.value] = load(rows.max + r + v.value * lanes); });
      for (int n = 0; n < count; ++n)
        unroll<chunk>(
            [&](auto v) { max_of[v.value] = max(max_of[v.value], load(scores + n * block_m + v.value * lanes)); });
      unroll<chunk>([&](auto v) {
        shift[v.value] =
            zero_if_equal(max_of[v.value], splat(minus_infinity));  // no key seen so far: exp(-inf - 0) = 0
        sum[v.value] = zero();
      });
      for (int n = 0; n < count; ++n) {
        unroll<chunk>([&](auto v) {
          float* score = scores + n * block_m + v.value * lanes;
          const Vec p = exp_negative(sub(load(score), shift[v.value]));
          store(p, score);
          sum[v.value] = add(sum[v.value], p);
        });
      }
      unroll<chunk>([&](auto v) {
        const int at = r + v.value * lanes;
        const Vec rescale = exp_negative(sub(load(rows.max + at), shift[v.value]));
        store(max_of[v.value], rows.max + at);
        store(rescale, rows.rescale + at);
        store(fma(load(rows.sum + at), rescale, sum[v.value]), rows.sum + at);
      });
    }
  }

  template <class Dot>
  static void accumulate_by(const AttentionParams& call, const Operand& v, const float* p, int64_t depth,
                            const Rows& rows, const Scratch& s) {
    for (int r = 0; r < block_m; r += chunk * lanes) {
      for_columns(call.head_dim_v, [&](int64_t c, auto width) {
        Vec sum[width.value][chunk];
        microkernel<Dot, chunk, width.value>(p + r, block_m, v.data + c, 1, v.stride, depth, sum);
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
