// The two products of a step of attention_sm80, from fragments in shared memory to accumulators: scores of the warp's
// rows and keys, and those keys' values weighed. Device only.
#pragma once

#include "descale.cuh"
#include "operands.cuh"

namespace rapt {

// s = q k^T. rows, keys: where the lane reads; q: Q's fragments, where they are held in registers.
template <AttentionConfig cfg, int m_tiles, int n_tiles, int q_held, int q_steps_held, class QTile, class KTile>
inline void multiply_queries(float (&s)[m_tiles][n_tiles][4], const unsigned (&q)[q_held][q_steps_held][4],
                             const TileAddress<QTile>& rows, const TileAddress<KTile>& keys) {
  using Keys = KeyFragments<cfg>;
  constexpr int q_steps = Sm80Layout(cfg).q_row / 32;
  static_assert(n_tiles % Keys::tiles == 0, "fragments are of whole tiles");
  Accumulator<cfg.f16_accumulate> sum[m_tiles][n_tiles];
#pragma unroll
  for (int kk = 0; kk < q_steps; ++kk) {
    unsigned a[m_tiles][4];
#pragma unroll
    for (int mt = 0; mt < m_tiles; ++mt) {
      if constexpr (cfg.q_in_registers)
        for (int i = 0; i < 4; ++i) a[mt][i] = q[mt][kk][i];
      else
        ldmatrix_x4(a[mt], rows.at(mt * 16, 2 * kk));
    }
#pragma unroll
    for (int n = 0; n < n_tiles; n += Keys::tiles) {
      Keys b;
      b.load(keys, kk, n);
#pragma unroll
      for (int tile = 0; tile < Keys::tiles; ++tile)
#pragma unroll
        for (int mt = 0; mt < m_tiles; ++mt) multiply_scores<cfg>(sum[mt][n + tile], a[mt], b.b[tile][0], b.b[tile][1]);
    }
  }
#pragma unroll
  for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
    for (int n = 0; n < n_tiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[mt][n][i] = sum[mt][n].get(i);
}

// sum_at(m-tile, i) += weights times the fragments of V at (step, tile), i being a tile of them.
template <AttentionConfig cfg, int m_tiles, class VTile, class SumAt>
inline void multiply_fragments(const WeightFragments<cfg> (&weights)[m_tiles], const TileAddress<VTile>& keys, int step,
                               int tile, const SumAt& sum_at) {
  ValueFragments<cfg> b;
  b.load(keys, step, tile);
#pragma unroll
  for (int i = 0; i < ValueFragments<cfg>::tiles; ++i)
#pragma unroll
    for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
      for (int term = 0; term < WeightFragments<cfg>::terms; ++term)
        multiply_values<cfg>(sum_at(mt, i), weights[mt].a[term], b.b[i]);
}

// o += p v, p being what softmax made of the scores.
template <AttentionConfig cfg, int m_tiles, int v_tiles, int n_tiles, class VTile>
inline void multiply_weights(float (&o)[m_tiles][v_tiles][4], const float (&p)[m_tiles][n_tiles][4],
                             const TileAddress<VTile>& keys) {
  using Values = ValueFragments<cfg>;
#pragma unroll
  for (int kk = 0; kk < n_tiles * 8 / Values::keys; ++kk) {
    WeightFragments<cfg> a[m_tiles];
#pragma unroll
    for (int mt = 0; mt < m_tiles; ++mt) a[mt].read(p[mt], kk);
#pragma unroll
    for (int n = 0; n < v_tiles; n += Values::tiles)
      multiply_fragments<cfg>(
          a, keys, kk, n, [&](int mt, int i) -> auto& { return o[mt][n + i]; });
  }
}

// The same with the products of some keys summed by themselves, in f16 or in f32, before they join o, times a factor of
// the row.
template <AttentionConfig cfg, int m_tiles, int v_tiles, int n_tiles, class Factors, class VTile>
inline void multiply_weights_apart(float (&o)[m_tiles][v_tiles][4], const float (&p)[m_tiles][n_tiles][4],
                                   const Factors& factors, const TileAddress<VTile>& keys) {
  using Values = ValueFragments<cfg>;
  constexpr int steps = n_tiles * 8 / Values::keys;
  constexpr int group = cfg.flush_keys > 0 && cfg.flush_keys < cfg.block_n ? cfg.flush_keys / Values::keys : steps;
  static_assert(steps % group == 0, "a step is whole groups of keys");
  WeightFragments<cfg> a[steps][m_tiles];
#pragma unroll
  for (int kk = 0; kk < steps; ++kk)
#pragma unroll
    for (int mt = 0; mt < m_tiles; ++mt) a[kk][mt].read(p[mt], kk);
#pragma unroll
  for (int n = 0; n < v_tiles; n += Values::tiles)
#pragma unroll
    for (int first = 0; first < steps; first += group) {
      Accumulator<cfg.f16_accumulate> sum[m_tiles][Values::tiles];
#pragma unroll
      for (int kk = first; kk < first + group; ++kk)
        multiply_fragments<cfg>(
            a[kk], keys, kk, n, [&](int mt, int i) -> auto& { return sum[mt][i]; });
#pragma unroll
      for (int i = 0; i < Values::tiles; ++i)
#pragma unroll
        for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            o[mt][n + i][e] = factors.join(o[mt][n + i][e], sum[mt][i].get(e), mt, e / 2);
          }
    }
}

}  // namespace rapt
