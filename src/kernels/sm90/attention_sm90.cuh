// attention_sm90, device half: attention on Hopper (sm_90a) with wgmma and TMA, for 16-bit tensors. Called by the entry
// that emit_unit (config_table.cpp) writes; assumes what attention_sm90.cpp accepts. The algorithm is
// FlashAttention-3's (Shah et al. 2024): one warp loads, two or three warpgroups compute 64 query rows each; the
// product of queries with the next keys and the product of weights with the last values are under way while softmax is
// computed.
#pragma once

#include "sm90.h"
// The layout comes before what uses it.
#include "epilogue.cuh"
#include "producer.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "rows.cuh"
#include "shared_state.cuh"
#include "softmax.cuh"
#include "values.cuh"

namespace rapt {

// One warpgroup that computes.
template <Sm90Config cfg>
struct Consumer {
  static constexpr Sm90Layout layout{cfg};
  static constexpr int n_tiles = cfg.block_n / 8, v_tiles = layout.dim_v / 8;
  using Scores = float[1][n_tiles][4];
  using Output = float[1][v_tiles][4];
  using Weights = unsigned[cfg.block_n / 16][4];  // operands of the product with V
  using Shared = SharedState<cfg>;

  const AttentionParams& p;
  const Shared shared;
  const int group;  // which of the warpgroups that compute
  StageSlot<cfg.stages> slot{};
  unsigned q_phase = 0;

  // A tile of query rows, from its last keys to its first: n_blocks with edges come first. Every n_block of the tile is
  // waited for and given back, also those of which this warpgroup's rows see nothing. Returns whether all that was
  // stored is finite.
  bool attend(const RowTile<cfg>& tile, NanPass pass) {
    const int row = tile.first_row() + 64 * group;
    const typename RowTile<cfg>::KeyRanges keys = RowTile<cfg>::keys_of(tile.band(), row, 64, tile.seqlen_q());
    const NBlocks all = tile.n_blocks(), mine = RowTile<cfg>::n_blocks_of(keys);
    RowSoftmax softmax{p.scale * log2_e};
    Scores s;
    Output o;
    Weights weights;
    int n_block = all.end - 1;
    wait_barrier(shared.q_full(), q_phase);
    for (; n_block >= all.begin && (mine.empty() || n_block >= mine.end); --n_block) skip(tile, n_block, pass);
    if (mine.empty()) {
      clear(o);
      arrive_by_warp(shared.q_empty());
    } else {
      take_turn();
      multiply_qk(s);
      give_turn();
      wgmma_wait_group<0>();
      pin(s);
      arrive_by_warp(shared.k_empty(slot.stage));
      finish_scores(s, softmax, tile, keys, n_block, pass);
      pack(weights, s);
      bool adds = false;  // to the output; the first product is written
#pragma unroll 1
      for (--n_block; n_block >= mine.begin; --n_block) {
        const StageSlot<cfg.stages> last = slot;
        open_values(tile, n_block + 1, last, pass);
        slot.advance();
        take_turn();
        multiply_qk(s);
        multiply_pv(o, weights, last.stage, adds);
        give_turn();
        wgmma_wait_group<1>();
        pin(s);
        arrive_by_warp(shared.k_empty(slot.stage));
        const bool rescales = finish_scores(s, softmax, tile, keys, n_block, pass);
        wgmma_wait_group<0>();
        pin(o);
        arrive_by_warp(shared.v_empty(last.stage));
        if (rescales) rescale(o, softmax);
        pack(weights, s);
        adds = true;
      }
      arrive_by_warp(shared.q_empty());
      open_values(tile, n_block + 1, slot, pass);
      multiply_pv(o, weights, slot.stage, adds);
      wgmma_wait_group<0>();
      pin(o);
      arrive_by_warp(shared.v_empty(slot.stage));
      slot.advance();
    }
    for (; n_block >= all.begin; --n_block) skip(tile, n_block, pass);
    q_phase ^= 1;
    return Epilogue<cfg>{p, tile, pass}.store(softmax, o, tile.first_row() + 64 * group);
  }

 private:
  // S = Q . K of a n_block, once its keys are there.
  void multiply_qk(Scores& s) const {
    wait_barrier(shared.k_full(slot.stage), slot.phase);
    const MatrixDescriptor q = MatrixDescriptor::of(warp_uniform(shared.q(group)), 1024),
                           k = MatrixDescriptor::of(warp_uniform(shared.k(slot.stage)), 1024);
    pin(s);
    wgmma_fence();
#pragma unroll
    for (int d = 0; d < layout.dim; d += 16) {
      const unsigned column = d / 64, within = d % 64 * 2;
      Wgmma<cfg.block_n>::template ss<cfg.q>(s, q.advanced(column * cfg.block_m() * 128 + within).word(),
                                             k.advanced(column * cfg.block_n * 128 + within).word(), d > 0);
    }
    wgmma_commit_group();
  }
  // O (+)= P . V of a n_block.
  void multiply_pv(Output& o, const Weights& weights, int stage, bool adds) const {
    const MatrixDescriptor v = MatrixDescriptor::of(warp_uniform(shared.v(stage)), 1024, cfg.block_n * 128);
    pin(o);
    wgmma_fence();
#pragma unroll
    for (int key = 0; key < cfg.block_n; key += 16)
      Wgmma<layout.dim_v>::template rs<cfg.v>(o, weights[key / 16], v.advanced(key * 128).word(), adds || key > 0);
    wgmma_commit_group();
  }

  // Masks and softmax: scores become weights. Returns whether the output must be rescaled.
  bool finish_scores(Scores& s, RowSoftmax& softmax, const RowTile<cfg>& tile,
                     const typename RowTile<cfg>::KeyRanges& keys, int n_block, NanPass pass) const {
    const int key = n_block * cfg.block_n;
    if (keys.needs_mask(key, key + cfg.block_n)) mask(s, tile, key);
    if (pass != NanPass::count_non_finite) return softmax.n_block(s);
#pragma unroll
    for (int n = 0; n < n_tiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[0][n][i] = s[0][n][i] == minus_infinity ? 0.0f : 1.0f;
    return false;
  }
  void mask(Scores& s, const RowTile<cfg>& tile, int key) const {
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32 % 4);
    const Band band = tile.band();
    const int first_row = tile.first_row() + 64 * group;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = first_row + 16 * warp + lane / 4 + 8 * half, shift = key + lane % 4 * 2;
      const int begin = (cfg.causal_or_local ? band.first(i) : 0) - shift,
                end = (cfg.causal_or_local ? band.past(i) : band.seqlen_k) - shift;
#pragma unroll
      for (int n = 0; n < n_tiles; ++n)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const bool visible = 8 * n + j < end && (!cfg.causal_or_local || 8 * n + j >= begin);
          float& x = s[0][n][2 * half + j];
          x = visible ? x : minus_infinity;
        }
    }
  }
  // A thread's scores are, in their order, its operands of the product with V.
  static void pack(Weights& weights, const Scores& s) {
#pragma unroll
    for (int n = 0; n < n_tiles; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        weights[n / 2][n % 2 * 2 + half] = pack2<cfg.v>(s[0][n][2 * half], s[0][n][2 * half + 1]);
  }
  static void rescale(Output& o, const RowSoftmax& softmax) {
#pragma unroll
    for (int n = 0; n < v_tiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) o[0][n][i] *= softmax.output_scale[i / 2];
  }
  static void clear(Output& o) {
#pragma unroll
    for (int n = 0; n < v_tiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) o[0][n][i] = 0.0f;
  }

  // Waits until V of a n_block may be read. All warpgroups come here once for each n_block of the tile, in the same order.
  void open_values(const RowTile<cfg>& tile, int n_block, const StageSlot<cfg.stages>& at, NanPass pass) const {
    wait_barrier(shared.v_full(at.stage), at.phase);
    const int keys = tile.band().seqlen_k - n_block * cfg.block_n;
    if (pass != NanPass::normal || (keys < cfg.block_n && tile.foreign_tail()))
      rewrite_values<cfg>(shared, at.stage, keys, pass, threadIdx.x - 128);
  }
  void skip(const RowTile<cfg>& tile, int n_block, NanPass pass) {
    take_turn(), give_turn();
    open_values(tile, n_block, slot, pass);
    wait_barrier(shared.k_full(slot.stage), slot.phase);
    arrive_by_warp(shared.k_empty(slot.stage)), arrive_by_warp(shared.v_empty(slot.stage));
    slot.advance();
  }

  // Products of one warpgroup are issued while another computes its softmax.
  void take_turn() const {
    if constexpr (cfg.ping_pong) wait_named(Shared::first_turn + static_cast<unsigned>(group), 256);
  }
  void give_turn() const {
    if constexpr (cfg.ping_pong)
      arrive_named(Shared::first_turn + static_cast<unsigned>(group + 1 == cfg.warpgroups ? 0 : group + 1), 256);
  }
};

// All tiles of a block, by the warpgroups that compute.
template <Sm90Config cfg>
inline void consume(const Sm90Params& params, const SharedState<cfg>& shared) {
  using Shared = SharedState<cfg>;
  const AttentionParams& p = params.attention;
  const int group = static_cast<int>(warp_uniform(threadIdx.x / 128)) - 1;
  Consumer<cfg> consumer{p, shared, group};
  if (cfg.ping_pong && group == cfg.warpgroups - 1) arrive_named(Shared::first_turn, 256);
  unsigned listed = 0;  // tiles that must be done again
#pragma unroll 1
  for (StageSlot<2> place;; place.advance()) {
    wait_barrier(shared.tile_full(place.stage), place.phase);
    const RowTile<cfg> tile{shared.tile(place.stage)};
    const NanPass pass = tile.pass();
    if (pass == no_more) return;
    if (cfg.causal_or_local && pass == list_complete) {
      wait_named(Shared::all_consumers, Shared::consumers);
      arrive_by_warp(shared.redo_listed());
      listed = 0;
    } else {
      if (p.seqused_q.present() && pass == NanPass::normal) clear_unused(p, tile);
      bool finite = true;
      if (tile.first_row() < tile.seqlen_q()) finite = consumer.attend(tile, pass);
      if (cfg.causal_or_local && pass == NanPass::normal &&
          any_named(Shared::all_consumers, Shared::consumers, !finite)) {
        if (threadIdx.x == 128)
          store_shared(shared.redo(listed), static_cast<unsigned>(tile.item())),
              store_shared(shared.redo_count(), listed + 1);
        ++listed;
      }
    }
    arrive_by_warp(shared.tile_empty(place.stage));
  }
}

template <Sm90Config cfg>
void attention_sm90(const Sm90Params& params) {
  extern __shared__ __align__(1024) char memory[];
  const SharedState<cfg> shared{shared_address(memory)};
  if (threadIdx.x == 0) shared.init();
  __syncthreads();
  constexpr int computing = cfg.warpgroups == 2 ? 232 : 160, loading = cfg.warpgroups == 2 ? 40 : 32;
  if (warp_uniform(threadIdx.x / 128) == 0) {
    give_registers<loading>();
    if (threadIdx.x == 0) produce<cfg>(params, shared);
  } else {
    take_registers<computing>();
    consume<cfg>(params, shared);
  }
}

}  // namespace rapt
