// ScoreTile: the score chain (score_chain.h) on the scores that a thread holds in mma accumulators: pairs of
// neighbouring keys of two rows of each m-tile. Bias and mask are loaded in pairs, before the products q.k are
// computed. Device only.
#pragma once

#include "score.cuh"
#include "softmax.cuh"

namespace rapt {

// The keys of a thread's scores in tiles of eight columns. A thread has two neighbouring keys in each tile. width: how
// many elements of bias and mask a load takes. With 8, the keys of four tiles are eight neighbours (octet_key).
template <int width>
struct LaneKeys {
  static constexpr int tiles = width == 8 ? 4 : 1;  // whose keys are neighbours
  static constexpr int first(int lane) { return lane % 4 * 2 * tiles; }
  // Returns the number of keys from the thread's first key to its first key in tile n.
  static constexpr int distance(int n) { return n / tiles * 8 * tiles + n % tiles * 2; }
};

// The elements of a bias or a mask that a thread needs for one row, in n_tiles tiles.
template <DType dtype, int width, int n_tiles>
struct RowElements {
  using Keys = LaneKeys<width>;
  static constexpr int bytes = bytes_of(dtype), in_word = width == 1 || bytes == 4 ? 1 : 4 / bytes,
                       words = (2 * Keys::tiles + in_word - 1) / in_word;
  unsigned raw[n_tiles / Keys::tiles][words];

  // Loads the elements of tile n, or of the tiles whose keys follow those of tile n. first: address of the thread's
  // first key. left: the number of keys of the tensor from this key on. Elements past the tensor are 0.
  void load(int n, const char* first, index_t stride, int left) {
    if (n % Keys::tiles != 0) return;
    unsigned(&to)[words] = raw[n / Keys::tiles];
    const int key = Keys::distance(n);
    if constexpr (width > 1) {
#pragma unroll
      for (int i = 0; i < words; ++i) to[i] = 0;
      if (key < left) load_words(first + bytes * key, to);
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) to[i] = key + i < left ? load_one(first + bytes * stride * (key + i)) : 0;
    }
  }
  // Returns the bits of element i of tile n.
  unsigned bits(int n, int i) const {
    const int element = n % Keys::tiles * 2 + i;
    const unsigned word = raw[n / Keys::tiles][element / in_word];
    if constexpr (in_word == 1) return word;
    return word >> 8 * bytes * (element % in_word) & (bytes == 2 ? 0xffffu : 0xffu);
  }
  // Returns whether an element is not 0.
  bool any() const {
    unsigned all = 0;
#pragma unroll
    for (const auto& tile : raw)
#pragma unroll
      for (const unsigned word : tile) all |= word;
    return all != 0;
  }
  float value(int n, int i) const {
    if constexpr (dtype == DType::f32) return detail::float_of(bits(n, i));
    const auto code = static_cast<unsigned short>(bits(n, i));
    return dtype == DType::f16 ? f16_to_f32(code) : bf16_to_float(code);
  }

 private:
  // Loads `words` words, or with pairs of bytes half a word.
  static void load_words(const char* from, unsigned (&to)[words]) {
    if constexpr (width * bytes == 2) to[0] = *reinterpret_cast<const unsigned short*>(from);
    if constexpr (width * bytes == 4) to[0] = *reinterpret_cast<const unsigned*>(from);
    if constexpr (width * bytes == 8) {
      const auto x = *reinterpret_cast<const Bytes8*>(from);
      to[0] = x.word[0], to[1] = x.word[1];
    }
    if constexpr (width * bytes >= 16)
#pragma unroll
      for (int i = 0; i < words; i += 4) {
        const auto x = *reinterpret_cast<const Bytes16*>(from + 4 * i);
#pragma unroll
        for (int j = 0; j < 4; ++j) to[i + j] = x.word[j];
      }
  }
  static unsigned load_one(const char* from) {
    if constexpr (bytes == 4) return *reinterpret_cast<const unsigned*>(from);
    if constexpr (bytes == 2) return *reinterpret_cast<const unsigned short*>(from);
    return *reinterpret_cast<const unsigned char*>(from);
  }
};
template <int width, int n_tiles>
struct RowElements<DType::none, width, n_tiles> {};

// Rows describes the rows of a thread's scores. Row (mt, half) is row lane / 4 + 8 * half of m-tile mt:
//   softmax_scales   the softmax multiplies scores by the scale (or, with a soft cap, by the cap), not the chain
//   width            how many elements of bias and mask a load takes: 1, 2 or 8 neighbouring keys
//   loads_mask       there is a mask, and the score chain applies it
//   exact_tanh       for f32, whose bounds are below the error of FastTanh
//   far_positions    distances of ALiBi can exceed 2^24, so that they are not exact in f32
//   batch(), offset()
//   head(mt, half), query(mt, half)   of the row, or of a row that exists, if this row is past the sequence
//   factor(mt, half)                  softmax scale times descales
template <auto cfg, class Rows, int m_tiles, int n_tiles>
struct ScoreTile {
  // Otherwise the softmax does everything.
  static constexpr bool used =
      !Rows::softmax_scales || cfg.softcap || cfg.bias != DType::none || cfg.alibi || cfg.mask || has_user_score;
  using Scores = float[m_tiles][n_tiles][4];
  using Keys = LaneKeys<Rows::width>;

  // The elements of bias and mask of a block of keys.
  struct Elements {
    RowElements<cfg.bias, Rows::width, n_tiles> bias[m_tiles][2];
    RowElements<Rows::loads_mask ? DType::u8 : DType::none, Rows::width, n_tiles> mask[m_tiles][2];
  };

  const AttentionParams& p;
  const Rows& rows;
  int key;  // the first of the thread's keys

  void load(Elements& elements) const {
    if constexpr (cfg.bias != DType::none) load(elements.bias, p.bias, bytes_of(cfg.bias));
    if constexpr (Rows::loads_mask) load(elements.mask, p.mask, 1);
  }

  // Returns whether the mask hides all these keys from all rows of the warp.
  static bool hides_all(const Elements& elements) {
    bool any = false;
    for_each_row([&](int mt, int half) { any |= elements.mask[mt][half].any(); });
    return !__any_sync(~0u, any);
  }

  // The steps of score_chain.h. s: at first the products q.k. The soft cap includes the scale, but no descales
  // (soft_cap_factor).
  void scale(Scores& s, const Elements&) const {
    if constexpr (cfg.softcap ? has_score_descales(cfg.q, cfg.k) : !Rows::softmax_scales)
      for_each_row([&](int mt, int half) {
        const float factor = rows.factor(mt, half);
        for_each_pair(s, mt, half, [&](int, float& x, float& y) { x *= factor, y *= factor; });
      });
  }
  void add_key_mean(Scores&, const Elements&) const {}
  // Soft caps are much larger than most scores, so tanh mostly has small arguments, for which a polynomial suffices. If
  // an argument of the warp is larger, each tile votes again, and in tiles with such an argument each element chooses.
  void soft_cap(Scores& s, const Elements&) const {
    if constexpr (cfg.softcap) {
      const SoftCap cap{p.tanh};
      if constexpr (Rows::exact_tanh)
        for_each(s, [&](float& x) { x = ExactTanh::of(x * p.tanh.factor); });
      else if (__all_sync(~0u, cap.all_small(s)))
        for_each(s, [&](float& x) { x = cap.small(x); });
      else
        for_each_tile(s, [&](auto& tile) {
          if (__all_sync(~0u, cap.all_small(tile)))
            for_each(tile, [&](float& x) { x = cap.small(x); });
          else
            for_each(tile, [&](float& x) { x = cap.of(x); });
        });
      if constexpr (!Rows::softmax_scales) for_each(s, [&](float& x) { x *= p.softcap; });
    }
  }
  void add_bias(Scores& s, const Elements& elements) const {
    if constexpr (cfg.bias != DType::none)
      for_each_row([&](int mt, int half) {
        const auto& bias = elements.bias[mt][half];
        for_each_pair(s, mt, half, [&](int n, float& x, float& y) { x += bias.value(n, 0), y += bias.value(n, 1); });
      });
  }
  void subtract_alibi(Scores& s, const Elements&) const {
    if constexpr (cfg.alibi)
      for_each_row([&](int mt, int half) {
        const float slope = p.alibi_slopes[rows.batch() * p.alibi_batch + rows.head(mt, half) * p.alibi_head];
        const index_t first = key - rows.query(mt, half) - rows.offset();  // distance to the thread's first key
        const auto distance = [&](int n) {
          if constexpr (Rows::far_positions) return fabsf(static_cast<float>(first + n));
          return fabsf(static_cast<float>(static_cast<int>(first)) + static_cast<float>(n));
        };
        for_each_pair(s, mt, half, [&](int n, float& x, float& y) {
          const int first_of_tile = Keys::distance(n);
          x = fmaf(-slope, distance(first_of_tile), x), y = fmaf(-slope, distance(first_of_tile + 1), y);
        });
      });
  }
  void apply_score_mod(Scores& s, const Elements&) const {
    if constexpr (has_user_score)
      for_each_row([&](int mt, int half) {
        [[maybe_unused]] const index_t batch = rows.batch(), head = rows.head(mt, half), i = rows.query(mt, half);
        for_each_pair(s, mt, half, [&](int n, float& x, float& y) {
          [[maybe_unused]] const index_t j = key + Keys::distance(n);
          x = RAPT_USER_SCORE(x, batch, head, i, j), y = RAPT_USER_SCORE(y, batch, head, i, (j + 1));
        });
      });
  }
  void apply_mask(Scores& s, const Elements& elements) const {
    if constexpr (Rows::loads_mask)
      for_each_row([&](int mt, int half) {
        const auto& mask = elements.mask[mt][half];
        for_each_pair(s, mt, half, [&](int n, float& x, float& y) {
          x = mask.bits(n, 0) != 0 ? x : minus_infinity, y = mask.bits(n, 1) != 0 ? y : minus_infinity;
        });
      });
  }

 private:
  template <class Step>
  static void for_each_row(const Step& step) {
#pragma unroll
    for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
      for (int half = 0; half < 2; ++half) step(mt, half);
  }
  template <class Step>
  static void for_each_pair(Scores& s, int mt, int half, const Step& step) {
#pragma unroll
    for (int n = 0; n < n_tiles; ++n) step(n, s[mt][n][2 * half], s[mt][n][2 * half + 1]);
  }
  template <class Step>
  static void for_each_tile(Scores& s, const Step& step) {
#pragma unroll
    for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
      for (int n = 0; n < n_tiles; ++n) step(reinterpret_cast<float(&)[1][1][4]>(s[mt][n]));
  }
  template <int rows, int columns, class Step>
  static void for_each(float (&s)[rows][columns][4], const Step& step) {
#pragma unroll
    for (int mt = 0; mt < rows; ++mt)
#pragma unroll
      for (int n = 0; n < columns; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) step(s[mt][n][i]);
  }

  // The rows of a tile n follow each other, because they share the test of the key.
  template <class OfRow>
  void load(OfRow (&elements)[m_tiles][2], const BroadcastRef& t, index_t bytes) const {
    const char* first[m_tiles][2];
    for_each_row([&](int mt, int half) {
      const index_t of_row = rows.batch() * t.batch + rows.head(mt, half) * t.head + rows.query(mt, half) * t.query;
      first[mt][half] = static_cast<const char*>(t.data) + bytes * (of_row + key * t.key);
    });
    const int left = static_cast<int>(p.seqlen_k) - key;
#pragma unroll
    for (int n = 0; n < n_tiles; ++n)
      for_each_row([&](int mt, int half) { elements[mt][half].load(n, first[mt][half], t.key, left); });
  }
};

}  // namespace rapt
