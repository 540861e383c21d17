// QK^T and PV of one n_block for one warp: operands from shared memory, accumulators in registers. Device only.
#pragma once

#include "descale.cuh"
#include "fragments.cuh"

namespace rapt {

// Adds the products of k-step kk to the sums of all n-tiles. a: the fragments of Q of this step.
template <const Sm80Config& cfg, class Sum, int m_tiles, int n_tiles, class KTile>
inline void mma_qk_step(Sum (&sum)[m_tiles][n_tiles], const unsigned (&a)[m_tiles][4],
                        const LdmatrixAddress<KTile>& keys, int kk) {
  using KFrag = KFragment<cfg>;
#pragma unroll
  for (int n = 0; n < n_tiles; n += KFrag::tiles) {
    KFrag b;
    b.load(keys, kk, n);
#pragma unroll
    for (int tile = 0; tile < KFrag::tiles; ++tile)
#pragma unroll
      for (int mt = 0; mt < m_tiles; ++mt) mma_qk_atom<cfg>(sum[mt][n + tile], a[mt], b.b[tile][0], b.b[tile][1]);
  }
}

// Computes S = QK^T. rows, keys: ldmatrix addresses. q: the fragments of Q, used only with q_in_registers.
template <const Sm80Config& cfg, int m_tiles, int n_tiles, int q_held, int q_steps_held, class QTile, class KTile>
inline void mma_qk(float (&s)[m_tiles][n_tiles][4], const unsigned (&q)[q_held][q_steps_held][4],
                   const LdmatrixAddress<QTile>& rows, const LdmatrixAddress<KTile>& keys) {
  using KFrag = KFragment<cfg>;
  constexpr int q_steps = Sm80Layout(cfg).q_row / 32;
  static_assert(n_tiles % KFrag::tiles == 0, "fragments are of whole tiles");
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
    mma_qk_step<cfg>(sum, a, keys, kk);
  }
#pragma unroll
  for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
    for (int n = 0; n < n_tiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[mt][n][i] = sum[mt][n].get(i);
}

// Computes sum_at(m-tile, i) += P * V for k-step `step` and the n-tiles tile + i of one VFragment.
template <const Sm80Config& cfg, int m_tiles, class VTile, class SumAt>
inline void mma_pv_tile(const PFragment<cfg> (&p)[m_tiles], const LdmatrixAddress<VTile>& keys, int step, int tile,
                        const SumAt& sum_at) {
  VFragment<cfg> b;
  b.load(keys, step, tile);
#pragma unroll
  for (int i = 0; i < VFragment<cfg>::tiles; ++i)
#pragma unroll
    for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
      for (int term = 0; term < PFragment<cfg>::terms; ++term) mma_pv_atom<cfg>(sum_at(mt, i), p[mt].a[term], b.b[i]);
}

// Computes O += PV.
template <const Sm80Config& cfg, int m_tiles, int v_tiles, int n_tiles, class VTile>
inline void mma_pv(float (&o)[m_tiles][v_tiles][4], const float (&p)[m_tiles][n_tiles][4],
                   const LdmatrixAddress<VTile>& keys) {
  using VFrag = VFragment<cfg>;
#pragma unroll
  for (int kk = 0; kk < n_tiles * 8 / VFrag::keys; ++kk) {
    PFragment<cfg> a[m_tiles];
#pragma unroll
    for (int mt = 0; mt < m_tiles; ++mt) a[mt].read(p[mt], kk);
#pragma unroll
    for (int n = 0; n < v_tiles; n += VFrag::tiles)
      mma_pv_tile<cfg>(
          a, keys, kk, n, [&](int mt, int i) -> auto& { return o[mt][n + i]; });
  }
}

// Computes O += scale * PV with two-level accumulation: it sums the products of promotion_interval keys in f16 or f32,
// and adds this sum to O in f32.
template <const Sm80Config& cfg, int m_tiles, int v_tiles, int n_tiles, class Scales, class VTile>
inline void mma_pv_two_level(float (&o)[m_tiles][v_tiles][4], const float (&p)[m_tiles][n_tiles][4],
                             const Scales& scales, const LdmatrixAddress<VTile>& keys) {
  using VFrag = VFragment<cfg>;
  constexpr int steps = n_tiles * 8 / VFrag::keys;
  constexpr int interval =
      cfg.promotion_interval > 0 && cfg.promotion_interval < cfg.block_n ? cfg.promotion_interval / VFrag::keys : steps;
  static_assert(steps % interval == 0, "a step is whole groups of keys");
  PFragment<cfg> a[steps][m_tiles];
#pragma unroll
  for (int kk = 0; kk < steps; ++kk)
#pragma unroll
    for (int mt = 0; mt < m_tiles; ++mt) a[kk][mt].read(p[mt], kk);
#pragma unroll
  for (int n = 0; n < v_tiles; n += VFrag::tiles)
#pragma unroll
    for (int first = 0; first < steps; first += interval) {
      Accumulator<cfg.f16_accumulate> sum[m_tiles][VFrag::tiles];
#pragma unroll
      for (int kk = first; kk < first + interval; ++kk)
        mma_pv_tile<cfg>(
            a[kk], keys, kk, n, [&](int mt, int i) -> auto& { return sum[mt][i]; });
#pragma unroll
      for (int i = 0; i < VFrag::tiles; ++i)
#pragma unroll
        for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            o[mt][n + i][e] = scales.accumulate(o[mt][n + i][e], sum[mt][i].get(e), mt, e / 2);
          }
    }
}

}  // namespace rapt
