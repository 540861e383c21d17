// The score chain of attention_sm90: soft cap, bias, ALiBi and mask tensors (score_chain.h has the order). A thread
// holds pairs of neighbouring keys of two rows, as wgmma accumulators do. Device only.
#pragma once

#include "device/score.cuh"
#include "row_tile.cuh"

namespace rapt {

// The elements of a bias or a mask that a thread needs for one row of a block: those of the keys key + 8 * n and the
// next one, for each tile n of eight keys. in_pairs: both elements are loaded at once (Broadcast::pairs).
template <DType dtype, bool in_pairs, int tiles>
struct RowElements {
  static constexpr int bytes = bytes_of(dtype);
  unsigned raw[tiles][in_pairs && 2 * bytes <= 4 ? 1 : 2];

  // row: address of key 0. keys: number of keys of the tensor. Keys past the tensor get values of other keys.
  void load(const char* row, index_t stride, int key, int keys) {
#pragma unroll
    for (int n = 0; n < tiles; ++n) {
      const int at = key + 8 * n;
      if constexpr (in_pairs) {
        load_pair(row + bytes * (at < keys ? at : keys - 2), raw[n]);
      } else {
#pragma unroll
        for (int i = 0; i < 2; ++i) raw[n][i] = load_one(row + bytes * stride * (at + i < keys ? at + i : keys - 1));
      }
    }
  }
  // Returns the bits of element i of tile n.
  unsigned bits(int n, int i) const {
    if constexpr (!in_pairs || bytes == 4)
      return raw[n][i];
    else
      return raw[n][0] >> 8 * bytes * i & (bytes == 2 ? 0xffffu : 0xffu);
  }
  float value(int n, int i) const {
    if constexpr (dtype == DType::f32) return detail::float_of(bits(n, i));
    const auto code = static_cast<unsigned short>(bits(n, i));
    return dtype == DType::f16 ? f16_to_f32(code) : bf16_to_float(code);
  }

 private:
  static void load_pair(const char* from, unsigned (&to)[2]) {
    const auto pair = *reinterpret_cast<const Bytes8*>(from);
    to[0] = pair.word[0], to[1] = pair.word[1];
  }
  static void load_pair(const char* from, unsigned (&to)[1]) {
    to[0] = bytes == 2 ? *reinterpret_cast<const unsigned*>(from) : *reinterpret_cast<const unsigned short*>(from);
  }
  static unsigned load_one(const char* from) {
    if constexpr (bytes == 4) return *reinterpret_cast<const unsigned*>(from);
    if constexpr (bytes == 2) return *reinterpret_cast<const unsigned short*>(from);
    return *reinterpret_cast<const unsigned char*>(from);
  }
};
template <bool in_pairs, int tiles>
struct RowElements<DType::none, in_pairs, tiles> {};

// The elements of a thread's two rows in a block. They are loaded while the products q.k are computed.
template <const Sm90Config& cfg>
struct ScoreElements {
  RowElements<cfg.bias, cfg.pairs, cfg.block_n / 8> bias[2];
  RowElements<cfg.mask ? DType::u8 : DType::none, cfg.pairs, cfg.block_n / 8> mask[2];
};

template <const Sm90Config& cfg>
struct ScoreSteps {
  // Without these operations, the softmax applies the scale.
  static constexpr bool used = cfg.softcap || cfg.bias != DType::none || cfg.alibi || cfg.mask;
  // If nothing follows the soft cap, the softmax multiplies by it.
  static constexpr bool cap_in_softmax = cfg.softcap && cfg.bias == DType::none && !cfg.alibi;

  const AttentionParams& p;
  const RowTile<cfg>& tile;
  int row, key;  // the thread's scores are those of `row` and `row + 8`, and of the pairs of keys from `key` on

  // For warpgroup `group` of the tile, and the block of keys that begins at `first_key`.
  ScoreSteps(const AttentionParams& params, const RowTile<cfg>& row_tile, int group, int first_key)
      : p(params), tile(row_tile) {
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32 % 4);
    row = tile.first_row() + 64 * group + 16 * warp + lane / 4, key = first_key + lane % 4 * 2;
  }

  // The factor that turns the scores after apply() into logits in base 2.
  static float scale_log2(const AttentionParams& p) {
    return (!used ? p.scale : cap_in_softmax ? p.softcap : 1.0f) * log2_e;
  }

  void load(ScoreElements<cfg>& elements) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if constexpr (cfg.bias != DType::none) load(elements.bias[half], p.bias, bytes_of(cfg.bias), half);
      if constexpr (cfg.mask) load(elements.mask[half], p.mask, 1, half);
    }
  }

  // The steps of score_chain.h. s: at first the products q.k.
  template <int tiles>
  void scale(float (&s)[1][tiles][4], const ScoreElements<cfg>&) const {
    const float factor = cfg.softcap ? p.scale / p.softcap : p.scale;
    for_each(s, [&](float x) { return x * factor; });
  }
  template <int tiles>
  void add_key_mean(float (&)[1][tiles][4], const ScoreElements<cfg>&) const {}
  // Soft caps are much larger than most scores, so tanh mostly has small arguments. If the warp has no other arguments,
  // it does not compute exponentials. The result for an argument does not depend on other arguments.
  template <int tiles>
  void soft_cap(float (&s)[1][tiles][4], const ScoreElements<cfg>&) const {
    if constexpr (cfg.softcap) {
      if (__any_sync(~0u, largest_square(s) > bits(FastTanh::largest_small_square))) {
        for_each(s, [](float x) { return FastTanh::of(x); });
      } else {
        for_each(s, [](float x) { return FastTanh::small(x); });
      }
      if constexpr (!cap_in_softmax) for_each(s, [&](float x) { return x * p.softcap; });
    }
  }
  template <int tiles>
  void add_bias(float (&s)[1][tiles][4], const ScoreElements<cfg>& elements) const {
    if constexpr (cfg.bias != DType::none)
      for_each_pair(s, [&](int half, int n, float& x, float& y) {
        x += elements.bias[half].value(n, 0), y += elements.bias[half].value(n, 1);
      });
  }
  template <int tiles>
  void subtract_alibi(float (&s)[1][tiles][4], const ScoreElements<cfg>&) const {
    if constexpr (cfg.alibi) {
      float slope[2], first[2];  // first: the distance to the first key
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int live = live_row(half);
        slope[half] = p.alibi_slopes[tile.batch() * p.alibi_batch + tile.head_of(live) * p.alibi_head];
        first[half] = static_cast<float>(key - live / cfg.packed_heads - tile.offset());
      }
      for_each_pair(s, [&](int half, int n, float& x, float& y) {
        x = fmaf(-slope[half], fabsf(first[half] + static_cast<float>(8 * n)), x);
        y = fmaf(-slope[half], fabsf(first[half] + static_cast<float>(8 * n + 1)), y);
      });
    }
  }
  template <int tiles>
  void apply_score_mod(float (&)[1][tiles][4], const ScoreElements<cfg>&) const {}
  template <int tiles>
  void apply_mask(float (&s)[1][tiles][4], const ScoreElements<cfg>& elements) const {
    if constexpr (cfg.mask)
      for_each_pair(s, [&](int half, int n, float& x, float& y) {
        x = elements.mask[half].bits(n, 0) != 0 ? x : minus_infinity;
        y = elements.mask[half].bits(n, 1) != 0 ? y : minus_infinity;
      });
  }

 private:
  template <int tiles, class Step>
  static void for_each_pair(float (&s)[1][tiles][4], const Step& step) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int n = 0; n < tiles; ++n) step(half, n, s[0][n][2 * half], s[0][n][2 * half + 1]);
  }
  template <int tiles, class Step>
  static void for_each(float (&s)[1][tiles][4], const Step& step) {
#pragma unroll
    for (int n = 0; n < tiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[0][n][i] = step(s[0][n][i]);
  }
  // Returns the bits of the largest square of s. Positive floats have the same order as their bits.
  template <int tiles>
  static int largest_square(const float (&s)[1][tiles][4]) {
    int most = 0;
#pragma unroll
    for (int n = 0; n < tiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const float(&x)[4] = s[0][n];
        most = max3(most, bits(x[i] * x[i]), bits(x[i + 1] * x[i + 1]));
      }
    return most;
  }
  static int bits(float x) { return static_cast<int>(detail::bits_of(x)); }
  static int max3(int a, int b, int c) {
    const int high = b > c ? b : c;
    return a > high ? a : high;
  }
  // A row past the sequence takes the values of a row that exists. Its results are not stored.
  int live_row(int half) const { return row + 8 * half < tile.seqlen_q() ? row + 8 * half : tile.first_row(); }

  template <class Elements>
  void load(Elements& elements, const BroadcastRef& t, index_t bytes, int half) const {
    const int live = live_row(half);
    const index_t first = tile.batch() * t.batch + tile.head_of(live) * t.head + live / cfg.packed_heads * t.query;
    elements.load(static_cast<const char*>(t.data) + bytes * first, t.key, key, static_cast<int>(p.seqlen_k));
  }
};

}  // namespace rapt
