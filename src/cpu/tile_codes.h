// FP8 K and V for a tile of one row (decoding): converted to float in registers inside the products. With a single row,
// floats in scratch would cost more than the products. Gives the same bits as the conversion through scratch.
// Included only by tile_narrow.h (internal linkage).
#pragma once

#include "cpu/tile_common.h"

namespace rapt::cpu {
namespace {

#if defined(RAPT_VECTOR_WIDENING)
// Lets `result` point to the FP8 rows of a key tile in the tensor (without a copy), and sets factors[n] for its row n.
// Returns false if vectors cannot convert all of them, or if the tile has more than one row.
inline bool code_operand(const AttentionParams& call, const Tile& tile, const TensorRef& t, const ScaleRef& scale,
                         const KeyTile& keys, int64_t depth, float* factors, Operand& result) {
  if (tile.rows > 1 || !is_fp8(t.dtype) || t.column != 1 || depth % (2 * lanes) != 0 || scale.channel != 0)
    return false;
  const KeyRows rows(call, tile, t);
  if (!rows.are_even(keys)) return false;
  const uint8_t* codes = reinterpret_cast<const uint8_t*>(rows.base()) + rows.offset(keys.first);
  for (int n = 0; n < keys.count; ++n) {
    const float factor = scale.present() ? *rows.descale(scale, keys.first + n) : 1.0f;
    if (!vectors_widen(t.dtype, codes + n * rows.pitch(), depth, factor)) return false;
    factors[n] = vector_factor(t.dtype, factor);
  }
  result = {factors, rows.pitch(), codes, t.dtype};
  return true;
}

// dst[i] = scale * sum over d of q[d] * k[i][d], i < keys. The order of additions is that of Narrow::dot.
template <class From, int keys>
inline void dot_codes(const float* q, const uint8_t* k, int64_t k_stride, const float* factors, int64_t depth,
                      float scale, float* dst) {
  Vec sum[keys], factor[keys];
  unroll<keys>([&](auto i) {
    sum[i.value] = zero();
    factor[i.value] = splat(factors[i.value]);
  });
  for (int64_t d = 0; d < depth; d += 2 * lanes) {
    const Vec first = load(q + d), second = load(q + d + lanes);
    unroll<keys>([&](auto i) {
      const Pair x = From::widen(k + i.value * k_stride + d, factor[i.value]);
      sum[i.value] = fma(second, x.second, fma(first, x.first, sum[i.value]));
    });
  }
  unroll<keys>([&](auto i) { dst[i.value] = reduce_add(sum[i.value]) * scale; });
}

// o = o * rescale + sum over n of p[n] * v[n], for `pairs` pairs of vectors. The order of additions is that of
// Narrow::accumulate_pv.
template <class From, int pairs>
inline void accumulate_pv_codes(const float* p, const uint8_t* v, int64_t v_stride, const float* factors, int count,
                                float rescale, float* o) {
  Vec sum[2 * pairs];
  unroll<2 * pairs>([&](auto i) { sum[i.value] = zero(); });
  for (int n = 0; n < count; ++n, v += v_stride) {
    const Vec weight = splat(p[n]), factor = splat(factors[n]);
    unroll<pairs>([&](auto i) {
      const Pair x = From::widen(v + i.value * 2 * lanes, factor);
      sum[2 * i.value] = fma(weight, x.first, sum[2 * i.value]);
      sum[2 * i.value + 1] = fma(weight, x.second, sum[2 * i.value + 1]);
    });
  }
  unroll<2 * pairs>([&](auto i) {
    float* at = o + i.value * lanes;
    store(fma(load(at), splat(rescale), sum[i.value]), at);
  });
}

inline void scores_of_codes(const Operand& k, int count, int64_t depth, float scale, const float* q, float* dst) {
  constexpr int keys_at_once = 4;
  with_vectors_of(k.dtype, [&]<class From>(From) {
    int n = 0;
    for (; n + keys_at_once <= count; n += keys_at_once)
      dot_codes<From, keys_at_once>(q, k.codes + n * k.stride, k.stride, k.data + n, depth, scale, dst + n);
    for (; n < count; ++n) dot_codes<From, 1>(q, k.codes + n * k.stride, k.stride, k.data + n, depth, scale, dst + n);
  });
}

inline void accumulate_codes(const Operand& v, int count, int64_t depth, const float* p, float rescale, float* o) {
  with_vectors_of(v.dtype, [&]<class From>(From) {
    int64_t c = 0;
    const auto blocks = [&](auto pairs) {
      for (; c + pairs.value * 2 * lanes <= depth; c += pairs.value * 2 * lanes)
        accumulate_pv_codes<From, pairs.value>(p, v.codes + c, v.stride, v.data, count, rescale, o + c);
    };
    blocks(Index<4>{});
    blocks(Index<2>{});
    blocks(Index<1>{});
  });
}
#else
inline bool code_operand(const AttentionParams&, const Tile&, const TensorRef&, const ScaleRef&, const KeyTile&,
                         int64_t, float*, Operand&) {
  return false;
}
inline void scores_of_codes(const Operand&, int, int64_t, float, const float*, float*) {}
inline void accumulate_codes(const Operand&, int, int64_t, const float*, float, float*) {}
#endif

}  // namespace
}  // namespace rapt::cpu
