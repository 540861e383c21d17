// The rows of K and V for the narrow layout, and FP8 rows for a tile of one row (decoding): converted to float in
// registers inside the products. With a single row, floats in scratch would cost more than the products. Gives the same
// bits as the conversion through scratch.
// Included only by tile_narrow.h (internal linkage).
#pragma once

#include "cpu/tile_common.h"

namespace rapt::cpu {
namespace {

// A key tile of K or V: rows of floats, or FP8 codes. Row n of codes has the factor factors[n].
struct RowOperand {
  const char* first = nullptr;  // the address of the first row, if the rows are `step` bytes apart
  int64_t step = 0;
  const void* const* list = nullptr;  // otherwise the address of each row
  const float* factors = nullptr;     // null: floats
  DType dtype = DType::f32;
};

// Calls f with a function object that returns the address of row n.
template <class F>
inline void with_rows(const RowOperand& of, const F& f) {
  if (of.list != nullptr)
    f([list = of.list](int64_t n) { return list[n]; });
  else
    f([first = of.first, step = of.step](int64_t n) { return static_cast<const void*>(first + n * step); });
}

// The rows of a key tile in the tensor. list: takes their addresses if they are not evenly spaced.
inline RowOperand rows_in_tensor(const KeyRows& rows, const KeyTile& keys, const void** list) {
  const int64_t size = bytes_of(rows.view.tensor.dtype);
  RowOperand result;
  if (rows.are_even(keys)) {
    result.first = rows.base() + size * rows.offset(keys.first), result.step = size * rows.pitch();
  } else {
    rows.write_addresses(keys, list);
    result.list = list;
  }
  return result;
}

#if defined(RAPT_VECTOR_WIDENING)
// Lets `result` point to the FP8 rows of a key tile in the tensor (without a copy), and sets factors[n] for its row n.
// Returns false if vectors cannot convert all of them, or if the tile has more than one row.
inline bool code_operand(const AttentionParams& call, const Tile& tile, const TensorRef& t, const ScaleRef& scale,
                         const KeyTile& keys, int64_t depth, const void** list, float* factors, RowOperand& result) {
  if (tile.rows > 1 || !is_fp8(t.dtype) || t.column != 1 || depth % (2 * lanes) != 0 || scale.channel != 0)
    return false;
  const KeyRows rows(call, tile, t);
  result = rows_in_tensor(rows, keys, list);
  result.factors = factors, result.dtype = t.dtype;
  bool widen = true;
  with_rows(result, [&](const auto& row) {
    for (int n = 0; widen && n < keys.count; ++n) {
      const float factor = scale.present() ? *rows.descale(scale, keys.first + n) : 1.0f;
      widen = vectors_widen(t.dtype, static_cast<const uint8_t*>(row(n)), depth, factor);
      factors[n] = vector_factor(t.dtype, factor);
    }
  });
  return widen;
}

// dst[n + i] = scale * sum over d of q[d] * k[n + i][d], i < keys. The order of additions is that of Narrow::dot.
template <class From, int keys, class RowAt>
inline void dot_codes(const float* q, const RowAt& k, int64_t n, const float* factors, int64_t depth, float scale,
                      float* dst) {
  Vec sum[keys], factor[keys];
  const uint8_t* row[keys];
  unroll<keys>([&](auto i) {
    row[i.value] = static_cast<const uint8_t*>(k(n + i.value));
    sum[i.value] = zero();
    factor[i.value] = splat(factors[n + i.value]);
  });
  for (int64_t d = 0; d < depth; d += 2 * lanes) {
    const Vec first = load(q + d), second = load(q + d + lanes);
    unroll<keys>([&](auto i) {
      const Pair x = From::widen(row[i.value] + d, factor[i.value]);
      sum[i.value] = fma(second, x.second, fma(first, x.first, sum[i.value]));
    });
  }
  unroll<keys>([&](auto i) { dst[n + i.value] = reduce_add(sum[i.value]) * scale; });
}

// o = o * rescale + sum over n of p[n] * v[n], for `pairs` pairs of vectors from channel c on. The order of additions
// is that of Narrow::accumulate_pv.
template <class From, int pairs, class RowAt>
inline void accumulate_pv_codes(const float* p, const RowAt& v, const float* factors, int64_t c, int count,
                                float rescale, RowPrefetch& next, float* o) {
  Vec sum[2 * pairs];
  unroll<2 * pairs>([&](auto i) { sum[i.value] = zero(); });
  for (int n = 0; n < count; ++n) {
    next.step();
    const uint8_t* const row = static_cast<const uint8_t*>(v(n)) + c;
    const Vec weight = splat(p[n]), factor = splat(factors[n]);
    unroll<pairs>([&](auto i) {
      const Pair x = From::widen(row + i.value * 2 * lanes, factor);
      sum[2 * i.value] = fma(weight, x.first, sum[2 * i.value]);
      sum[2 * i.value + 1] = fma(weight, x.second, sum[2 * i.value + 1]);
    });
  }
  unroll<2 * pairs>([&](auto i) {
    float* at = o + i.value * lanes;
    store(fma(load(at), splat(rescale), sum[i.value]), at);
  });
}

inline void scores_of_codes(const RowOperand& k, int count, int64_t depth, float scale, const float* q,
                            RowPrefetch& next, float* dst) {
  constexpr int keys_at_once = 4;
  with_rows(k, [&](const auto& row) {
    with_vectors_of(k.dtype, [&]<class From>(From) {
      int64_t n = 0;
      for (; n + keys_at_once <= count; n += keys_at_once) {
        next.step();
        dot_codes<From, keys_at_once>(q, row, n, k.factors, depth, scale, dst);
      }
      for (; n < count; ++n) dot_codes<From, 1>(q, row, n, k.factors, depth, scale, dst);
    });
  });
}

inline void accumulate_codes(const RowOperand& v, int count, int64_t depth, const float* p, float rescale,
                             RowPrefetch& next, float* o) {
  with_rows(v, [&](const auto& row) {
    with_vectors_of(v.dtype, [&]<class From>(From) {
      int64_t c = 0;
      const auto blocks = [&](auto pairs) {
        for (; c + pairs.value * 2 * lanes <= depth; c += pairs.value * 2 * lanes)
          accumulate_pv_codes<From, pairs.value>(p, row, v.factors, c, count, rescale, next, o + c);
      };
      blocks(Index<4>{});
      blocks(Index<2>{});
      blocks(Index<1>{});
    });
  });
}
#else
inline bool code_operand(const AttentionParams&, const Tile&, const TensorRef&, const ScaleRef&, const KeyTile&,
                         int64_t, const void**, float*, RowOperand&) {
  return false;
}
inline void scores_of_codes(const RowOperand&, int, int64_t, float, const float*, RowPrefetch&, float*) {}
inline void accumulate_codes(const RowOperand&, int, int64_t, const float*, float, RowPrefetch&, float*) {}
#endif

}  // namespace
}  // namespace rapt::cpu
