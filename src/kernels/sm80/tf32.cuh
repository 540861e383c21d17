// QK^T and PV of one n_block by TF32 mma, for f32 operands, and for f16 beside bf16. Device only.
//
// A TF32 number has the exponent of f32 and the 11 bits of precision of f16. It holds every f16 and bf16 number. An f32
// number x becomes the sum of two TF32 terms, high and low; the rest is below 2^-21 of x. A product of two such sums is
// high * high + (high * low + low * high); low * low is too small to matter. This is known as 3xTF32. The two parts
// have accumulators of their own, because tensor cores truncate sums, and a truncated sum could lose the small
// products.
//
// ldmatrix moves 16-bit elements and cannot transpose f32. So fragments come from plain loads, and lanes take the
// elements that are cheap to load. This is possible because the summed dimension can have any order if both operands
// have the same order, and because the columns of PV can have any order that the epilogue knows (ChannelPair).
#pragma once

#include "device/numeric.cuh"
#include "device/tile.cuh"
#include "ptx/mma.cuh"
#include "sm80.h"

namespace rapt {

// The terms of one operand register. The mma instruction truncates `low` to TF32.
template <int terms>
struct Tf32Terms {
  unsigned term[terms];

  static Tf32Terms of(float x, bool is_exact) {
    Tf32Terms t;
    const float high = is_exact ? x : round_to_tf32(x);
    t.term[0] = detail::bits_of(high);
    if constexpr (terms == 2) t.term[1] = detail::bits_of(x - high);
    return t;
  }
};

// Loads `count` neighbouring elements of `dtype` from shared memory.
template <DType dtype, int count>
inline void load_floats(unsigned address, float (&x)[count]) {
  static_assert(count == 2 || count == 4);
  if constexpr (dtype == DType::f32 && count == 4) {
    load_shared_4(address, x[0], x[1], x[2], x[3]);
  } else if constexpr (dtype == DType::f32) {
    load_shared_2(address, x[0], x[1]);
  } else {
    static_assert(count == 4);
    unsigned pairs[2];
    load_shared_words_2(address, pairs[0], pairs[1]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto code = static_cast<unsigned short>(pairs[i / 2] >> i % 2 * 16);
      x[i] = dtype == DType::f16 ? f16_to_f32(code) : bf16_to_float(code);
    }
  }
}

// A lane's elements of a row of Q or K. In each group of 16 channels, lane t of a quad takes channels 4t to 4t+3. They
// are the columns t and 4+t of two k8 steps.
template <class Tile, DType dtype>
struct RowAddress {
  LdmatrixAddress<Tile> chunk;  // the 16-byte chunk
  unsigned in_chunk;

  RowAddress(unsigned tile, int row, int lane)
      : chunk(tile, row, dtype == DType::f32 ? lane % 4 : lane % 4 / 2),
        in_chunk(dtype == DType::f32 ? 0u : static_cast<unsigned>(lane % 2 * 8)) {}
  unsigned at(int rows, int group) const { return chunk.at(rows, group * bytes_of(dtype)) + in_chunk; }
};

// The operand registers of 16 channels of a row: [k8 step][column t or 4+t].
template <int terms, DType dtype>
struct RowFragment {
  Tf32Terms<terms> x[2][2];

  void load(unsigned address) {
    float channel[4];
    load_floats<dtype>(address, channel);
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i / 2][i % 2] = Tf32Terms<terms>::of(channel[i], dtype != DType::f32);
  }
};

// d += a * b for one pair of terms.
template <int a_terms, int b_terms>
inline void mma_tf32(float (&d)[4], const Tf32Terms<a_terms> (&a)[4], int a_term, const Tf32Terms<b_terms>& b0,
                     const Tf32Terms<b_terms>& b1, int b_term) {
  const unsigned fragment[4] = {a[0].term[a_term], a[1].term[a_term], a[2].term[a_term], a[3].term[a_term]};
  mma_m16n8k8_tf32(d, fragment, b0.term[b_term], b1.term[b_term]);
}

// The sums of high * high, and of the other two products of terms.
struct Tf32Sum {
  float high[4] = {0.0f, 0.0f, 0.0f, 0.0f}, low[4] = {0.0f, 0.0f, 0.0f, 0.0f};

  // Infinities make low terms NaN. Then the sum of the high products is not finite either, and has the right sign.
  template <bool has_low>
  float get(int i) const {
    if constexpr (!has_low) return high[i];
    return fabsf(high[i]) <= largest_finite ? high[i] + low[i] : high[i];
  }
};

// s = sum, or with `adds` s += sum. Sets the sums to 0.
template <bool has_low, bool adds, int m_tiles, int n_tiles>
inline void add_sums(float (&s)[m_tiles][n_tiles][4], Tf32Sum (&sum)[m_tiles][n_tiles]) {
#pragma unroll
  for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
    for (int n = 0; n < n_tiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float x = sum[mt][n].template get<has_low>(i);
        s[mt][n][i] = adds ? s[mt][n][i] + x : x;
      }
      sum[mt][n] = {};
    }
}

// sum_at(mt) += a[mt] * b, for all m-tiles.
template <int m_tiles, int a_terms, int b_terms, class SumAt>
inline void mma_tf32_terms(const Tf32Terms<a_terms> (&a)[m_tiles][4], const Tf32Terms<b_terms>& b0,
                           const Tf32Terms<b_terms>& b1, const SumAt& sum_at) {
#pragma unroll
  for (int mt = 0; mt < m_tiles; ++mt)
    if constexpr (a_terms == 2) mma_tf32(sum_at(mt).low, a[mt], 1, b0, b1, 0);
#pragma unroll
  for (int mt = 0; mt < m_tiles; ++mt) mma_tf32(sum_at(mt).high, a[mt], 0, b0, b1, 0);
#pragma unroll
  for (int mt = 0; mt < m_tiles; ++mt)
    if constexpr (b_terms == 2) mma_tf32(sum_at(mt).low, a[mt], 0, b0, b1, 1);
}

// Loads the A fragments of 16 channels of Q for one m-tile.
template <int terms, int m_tiles, class Tile, DType dtype>
inline void load_a_fragment(Tf32Terms<terms> (&a)[2][m_tiles][4], int mt, const RowAddress<Tile, dtype>& rows,
                            int group) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    RowFragment<terms, dtype> q;
    q.load(rows.at(mt * 16 + 8 * half, group));
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i / 2][mt][i % 2 * 2 + half] = q.x[i / 2][i % 2];
  }
}

// Computes S = QK^T. Of every 64 channels the products are summed by tensor cores, and these sums are added in f32. For
// large head dims the loop is not unrolled, because this saves registers.
template <const Sm80Config& cfg, int m_tiles, int n_tiles, class QTile, class KTile>
inline void mma_qk_tf32(float (&s)[m_tiles][n_tiles][4], const RowAddress<QTile, cfg.q>& rows,
                        const RowAddress<KTile, cfg.k>& keys) {
  constexpr int q_terms = Sm80Layout::terms(cfg, cfg.q), k_terms = Sm80Layout::terms(cfg, cfg.k);
  constexpr int groups = Sm80Layout(cfg).dim / 16, groups_of_sum = 4;
  constexpr bool has_low = q_terms + k_terms > 2, several_sums = groups > groups_of_sum;
  Tf32Sum sum[m_tiles][n_tiles];
  if constexpr (several_sums) add_sums<has_low, false>(s, sum);  // zeros
#pragma unroll(groups <= 8 ? groups : 1)
  for (int group = 0; group < groups; ++group) {
    Tf32Terms<q_terms> a[2][m_tiles][4];  // [k8 step]
#pragma unroll
    for (int mt = 0; mt < m_tiles; ++mt) load_a_fragment(a, mt, rows, group);
#pragma unroll
    for (int n = 0; n < n_tiles; ++n) {
      RowFragment<k_terms, cfg.k> k;
      k.load(keys.at(n * 8, group));
#pragma unroll
      for (int step = 0; step < 2; ++step)
        mma_tf32_terms(
            a[step], k.x[step][0], k.x[step][1], [&](int mt) -> auto& { return sum[mt][n]; });
    }
    if (several_sums && group % groups_of_sum == groups_of_sum - 1) add_sums<has_low, true>(s, sum);
  }
  add_sums<has_low, several_sums>(s, sum);
}

// A lane's elements of V. In each k8 step, lane t of a quad takes the keys 2t and 2t+1, because it holds the weights of
// these keys (C fragment of S). They are the rows t and 4+t of the operand. Of each group of 8 * lane_channels channels
// it takes lane_channels neighbours, which become column l / 4 of as many n-tiles.
template <const Sm80Config& cfg, class Tile>
struct ValueAddress {
  static constexpr int channels = Sm80Layout(cfg).lane_channels(), group_chunks = 2 * channels;
  LdmatrixAddress<Tile> even, odd;  // of keys 2t and 2t+1
  unsigned in_chunk;

  ValueAddress(unsigned tile, int first_key, int lane)
      : even(tile, first_key + lane % 4 * 2, lane / 4 * channels / 4),
        odd(tile, first_key + lane % 4 * 2 + 1, lane / 4 * channels / 4),
        in_chunk(channels == 4 ? 0u : static_cast<unsigned>(lane / 4 % 2 * 8)) {}

  void load(int step, int group, float (&x)[2][channels]) const {
    load_floats<cfg.v>(even.at(step * 8, group * group_chunks) + in_chunk, x[0]);
    load_floats<cfg.v>(odd.at(step * 8, group * group_chunks) + in_chunk, x[1]);
  }
};

// Loads the B fragments of k8 step first + step of V, for the n-tiles of a group of channels.
template <int terms, int tiles, int steps, class Address>
inline void load_b_fragments(Tf32Terms<terms> (&b)[tiles][steps][2], const Address& keys, int first, int step,
                             int group) {
  float v[2][tiles];
  keys.load(first + step, group, v);
#pragma unroll
  for (int i = 0; i < 2 * tiles; ++i) b[i / 2][step][i % 2] = Tf32Terms<terms>::of(v[i % 2][i / 2], false);
}

// sum += a * b for `steps` k8 steps. The products with low terms come first, because a large sum would truncate them.
template <int steps, int terms>
inline void mma_tf32_steps(float (&sum)[4], const Tf32Terms<terms> (&a)[steps][4],
                           const Tf32Terms<terms> (&b)[steps][2]) {
#pragma unroll
  for (int term = terms - 1; term >= 0; --term)
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      mma_tf32(sum, a[step], term, b[step][0], b[step][1], 0);
      if (term > 0) mma_tf32(sum, a[step], 0, b[step][0], b[step][1], term);
    }
}

// Computes O += PV. Tensor cores sum the products of 16 keys, or of 8 if the head dim is large; these sums are added to
// O in f32. The loop is not unrolled, because this saves registers. So P moves down, and its first keys are always at
// 0.
template <const Sm80Config& cfg, int m_tiles, int v_tiles, int n_tiles, class Address>
inline void mma_pv_tf32(float (&o)[m_tiles][v_tiles][4], float (&p)[m_tiles][n_tiles][4], const Address& keys) {
  constexpr int terms = Sm80Layout::terms(cfg, cfg.v), tiles = Address::channels, steps = Sm80Layout(cfg).v_steps();
#pragma unroll 1
  for (int first = 0; first < n_tiles; first += steps) {
    Tf32Terms<terms> a[m_tiles][steps][4];
#pragma unroll
    for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
      for (int i = 0; i < 4 * steps; ++i)
        a[mt][i / 4][i % 2 * 2 + i % 4 / 2] = Tf32Terms<terms>::of(p[mt][i / 4][i % 4], false);
#pragma unroll
    for (int group = 0; group < v_tiles / tiles; ++group) {
      Tf32Terms<terms> b[tiles][steps][2];
#pragma unroll
      for (int step = 0; step < steps; ++step) load_b_fragments(b, keys, first, step, group);
#pragma unroll
      for (int n = 0; n < tiles; ++n)
#pragma unroll
        for (int mt = 0; mt < m_tiles; ++mt) {
          float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
          mma_tf32_steps(sum, a[mt], b[n]);
#pragma unroll
          for (int i = 0; i < 4; ++i) o[mt][group * tiles + n][i] += sum[i];
        }
    }
#pragma unroll
    for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
      for (int i = 0; i < 4 * (n_tiles - steps); ++i) p[mt][i / 4][i % 4] = p[mt][i / 4 + steps][i % 4];
  }
}

}  // namespace rapt
