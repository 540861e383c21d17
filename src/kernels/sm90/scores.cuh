// The score chain of attention_sm90: soft cap, bias, ALiBi and mask tensors (score_chain.h has the order). A thread
// holds pairs of neighbouring keys of two rows, as wgmma accumulators do. Device only.
#pragma once

#include "device/score.cuh"
#include "row_tile.cuh"

namespace rapt {

// tanh of arguments up to 0.5 as an odd polynomial (Chebyshev fit of tanh(x) / x in x^2). The relative error is below
// 1.1e-7.
struct SmallTanh {
  static constexpr float largest_square = 0.25f;
  static float of(float x) {
    const float t = x * x;
    float y = fmaf(0.01714132f, t, -0.05298924f);
    y = fmaf(y, t, 0.13324828f), y = fmaf(y, t, -0.33333072f);
    return fmaf(x * t, y, x);
  }
};

// Pairs of elements of a bias or mask row: the keys `key + 8 * n` and the next one, for each tile n of eight keys.
template <DType dtype>
struct PairLoader {
  static constexpr int bytes = bytes_of(dtype);
  const char* row;       // address of key 0
  index_t stride;        // of keys, in elements
  int key, keys;         // this thread's first key in the block; number of keys of the tensor

  // Returns the elements of tile n. Keys past the tensor give 0 and are not read.
  Float2 operator()(int n) const {
    const int at = key + 8 * n;
    if (stride == 1 && at + 1 < keys && reinterpret_cast<unsigned long long>(row) % (2 * bytes) == 0) return both(at);
    return {at < keys ? one(at) : 0.0f, at + 1 < keys ? one(at + 1) : 0.0f};
  }

 private:
  float one(int at) const { return load_element<dtype>(row, at * stride); }
  Float2 both(int at) const {
    const char* const from = row + at * bytes;
    if constexpr (dtype == DType::f32) {
      const auto pair = *reinterpret_cast<const Bytes8*>(from);
      return {detail::float_of(pair.word[0]), detail::float_of(pair.word[1])};
    } else {
      const unsigned pair = *reinterpret_cast<const unsigned*>(from);
      const auto low = static_cast<unsigned short>(pair), high = static_cast<unsigned short>(pair >> 16);
      if constexpr (dtype == DType::f16) return {f16_to_f32(low), f16_to_f32(high)};
      return {detail::float_of(pair << 16), detail::float_of(pair & 0xffff0000u)};
    }
  }
};

template <const Sm90Config& cfg>
struct ScoreSteps {
  // Without these operations, the softmax applies the scale.
  static constexpr bool used = cfg.softcap || cfg.bias != DType::none || cfg.alibi || cfg.mask;
  // If nothing follows the soft cap, the softmax multiplies by it.
  static constexpr bool cap_in_softmax = cfg.softcap && cfg.bias == DType::none && !cfg.alibi;

  const AttentionParams& p;
  const RowTile<cfg>& tile;

  // The factor that turns the scores after apply() into logits in base 2.
  static float scale_log2(const AttentionParams& p) {
    return (!used ? p.scale : cap_in_softmax ? p.softcap : 1.0f) * log2_e;
  }

  // s: products q.k of rows `row` and `row + 8`, for the pairs of keys from `key` on.
  template <int tiles>
  void apply(float (&s)[1][tiles][4], int row, int key) const {
    scale(s);
    if constexpr (cfg.softcap) soft_cap(s);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // A row past the sequence takes the values of a row that exists. Its results are not stored.
      const int live = row + 8 * half < tile.seqlen_q() ? row + 8 * half : tile.first_row();
      const index_t batch = tile.batch(), head = tile.head_of(live), query = live / cfg.packed_heads;
      if constexpr (cfg.bias != DType::none) add_bias(s, half, batch, head, query, key);
      if constexpr (cfg.alibi) subtract_alibi(s, half, batch, head, static_cast<int>(query), key);
      if constexpr (cfg.mask) apply_mask(s, half, batch, head, query, key);
    }
  }

 private:
  template <int tiles, class Step>
  static void for_each_pair(float (&s)[1][tiles][4], int half, const Step& step) {
#pragma unroll
    for (int n = 0; n < tiles; ++n) step(n, s[0][n][2 * half], s[0][n][2 * half + 1]);
  }

  template <int tiles>
  void scale(float (&s)[1][tiles][4]) const {
    const float factor = cfg.softcap ? __fdividef(p.scale, p.softcap) : p.scale;
#pragma unroll
    for (int n = 0; n < tiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[0][n][i] *= factor;
  }
  // Soft caps are much larger than most scores, so tanh mostly has small arguments. There it is a polynomial, which
  // needs no unit for exponentials. If an argument of the warp is larger, all of them take the longer way.
  template <int tiles>
  void soft_cap(float (&s)[1][tiles][4]) const {
    int most = 0;  // the largest square, as bits: positive floats have the same order as their bits
#pragma unroll
    for (int n = 0; n < tiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const float(&x)[4] = s[0][n];
        most = max3(most, bits(x[i] * x[i]), bits(x[i + 1] * x[i + 1]));
      }
    if (__any_sync(~0u, most > bits(SmallTanh::largest_square))) {
      for_each(s, [](float x) { return FastTanh::of(x); });
    } else {
      for_each(s, [](float x) { return SmallTanh::of(x); });
    }
    if constexpr (!cap_in_softmax) for_each(s, [&](float x) { return x * p.softcap; });
  }
  template <int tiles, class Step>
  static void for_each(float (&s)[1][tiles][4], const Step& step) {
#pragma unroll
    for (int n = 0; n < tiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[0][n][i] = step(s[0][n][i]);
  }
  static int bits(float x) { return static_cast<int>(detail::bits_of(x)); }
  static int max3(int a, int b, int c) {
    const int high = b > c ? b : c;
    return a > high ? a : high;
  }
  template <DType dtype>
  PairLoader<dtype> loader(const BroadcastRef& t, index_t batch, index_t head, index_t query, int key) const {
    const index_t row = batch * t.batch + head * t.head + query * t.query;
    return {static_cast<const char*>(t.data) + bytes_of(dtype) * row, t.key, key, static_cast<int>(p.seqlen_k)};
  }
  template <int tiles>
  void add_bias(float (&s)[1][tiles][4], int half, index_t batch, index_t head, index_t query, int key) const {
    const auto load = loader<cfg.bias>(p.bias, batch, head, query, key);
    for_each_pair(s, half, [&](int n, float& x, float& y) {
      const Float2 bias = load(n);
      x += bias.x, y += bias.y;
    });
  }
  template <int tiles>
  void subtract_alibi(float (&s)[1][tiles][4], int half, index_t batch, index_t head, int query, int key) const {
    const float slope = p.alibi_slopes[batch * p.alibi_batch + head * p.alibi_head],
                first = static_cast<float>(key - query - tile.offset());
    for_each_pair(s, half, [&](int n, float& x, float& y) {
      x = fmaf(-slope, fabsf(first + static_cast<float>(8 * n)), x);
      y = fmaf(-slope, fabsf(first + static_cast<float>(8 * n + 1)), y);
    });
  }
  template <int tiles>
  void apply_mask(float (&s)[1][tiles][4], int half, index_t batch, index_t head, index_t query, int key) const {
    const BroadcastRef& t = p.mask;
    const char* const row = static_cast<const char*>(t.data) + batch * t.batch + head * t.head + query * t.query;
    const int keys = static_cast<int>(p.seqlen_k);
    for_each_pair(s, half, [&](int n, float& x, float& y) {
      const int at = key + 8 * n;
      x = at < keys && row[at * t.key] != 0 ? x : minus_infinity;
      y = at + 1 < keys && row[(at + 1) * t.key] != 0 ? y : minus_infinity;
    });
  }
};

}  // namespace rapt
