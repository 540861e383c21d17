// attention_sm90, device half: attention with wgmma and TMA, for Hopper (sm_90a). The algorithm is
// FlashAttention-3 (Shah et al. 2024). One thread loads tiles with TMA. Two or three warpgroups compute 64 query rows
// each. Each warpgroup overlaps the softmax of a block of keys with PV of the previous block.
// emit_unit (config_table.cpp) generates the kernel entry. The kernel relies on the checks in attention_sm90.cpp.
#pragma once

#include "sm90.h"
// sm90.h comes first, because the other files use its layout.
#include "convert_kv.cuh"
#include "epilogue.cuh"
#include "fragments.cuh"
#include "nan_passes.cuh"
#include "producer.cuh"
#include "promotion.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "row_tile.cuh"
#include "score_boxes.cuh"
#include "scores.cuh"
#include "shared_state.cuh"
#include "softmax.cuh"
#include "stages.cuh"

namespace rapt {

// A consumer warpgroup: it computes 64 rows of each tile.
template <const Sm90Config& cfg>
struct Consumer {
  static constexpr Sm90Layout layout{cfg};
  static constexpr int n_tiles = cfg.block_n / 8, v_tiles = layout.dim_v / 8;
  using SFragment = float[1][n_tiles][4];
  using OFragment = float[1][v_tiles][4];
  using PFragment = Weights<cfg>;  // operands of the product with V
  static constexpr Sm90Layout::Block k_block = Sm90Layout::block_of_k(cfg), v_block = Sm90Layout::block_of_v(cfg);
  using Shared = SharedState<cfg>;
  using Scores = ScoreTile<cfg, ScoreRows<cfg>, 1, n_tiles>;

  const AttentionParams& p;
  const Shared shared;
  const int group;      // number of this consumer warpgroup
  float* const p_sums;  // this thread's f32 sums (Promotion)
  using KvSlot = StageSlot<cfg.kv_stages>;
  KvSlot slot{};  // the buffer of the next block of K or V
  StageSlot<cfg.q_stages> q_slot{};
  StageSlot<cfg.boxes ? cfg.score_stages : 1> score_slot{};  // with boxes: the buffers of the next bias and mask
  bool masks = true;                                         // the mask hides a key of the block from a row of the warp

  // Computes a tile, from its last block of keys to its first, so that masked blocks come first. In the ring, V of a
  // block comes after K of the block that is computed next. A warpgroup also waits for the blocks that none of its rows
  // sees, and releases them. Returns whether all values that this thread stores are finite.
  bool run_tile(const RowTile<cfg>& tile, NanPass pass) {
    const int row = tile.first_row() + 64 * group;
    const typename RowTile<cfg>::KeyRanges keys = RowTile<cfg>::keys_of(tile.band(), row, 64, tile.seqlen_q());
    const NBlocks all = tile.n_blocks(), mine = RowTile<cfg>::n_blocks_of(keys);
    RowSoftmax<cfg> softmax{LogitScale<cfg>::of(ScoreRows<cfg>{p, tile, group}), p};
    softmax.begin_tile((all.end - all.begin) * cfg.block_n);
    Promotion<cfg> promotion{p_sums};
    SFragment s;
    OFragment o;
    PFragment p_fragment;
    int n_block = all.end - 1;
    RAPT_TRACE_NEXT("consumer #: wait Q");
    wait_barrier(shared.q_full(q_slot.stage), q_slot.phase);
    bool accumulate = false;  // the first PV overwrites o
    // Each iteration computes blocks that follow each other. If no block is skipped between two others, there is one.
    do {
      for (; n_block >= all.begin && (n_block >= mine.end || n_block < mine.begin || is_hidden()); --n_block)
        skip(tile, n_block, n_block + 1 < all.end, pass);
      if (n_block < all.begin) {
        if (!accumulate) set_zero(o);
        if (!all.empty()) skip_v(tile, all.begin, pass);
        break;
      }
      if (accumulate) accumulate = !promotion.moves(o);
      const bool after_skipped = n_block + 1 < all.end;
      if (after_skipped) prepare_v(tile, n_block + 1, slot.next(), pass);
      typename Scores::Elements elements;
      first_qk(s, elements, tile, n_block);
      if (after_skipped) release_unused();
      if (mask_and_softmax(s, elements, softmax, tile, keys, n_block, pass)) {
        softmax.correct(s);
        if (accumulate) rescale(o, softmax.output_scale);
        promotion.rescale(softmax.output_scale);
      }
      p_fragment.pack(s);
#pragma unroll 1
      for (--n_block; n_block >= mine.begin && !is_hidden(); --n_block) {
        prepare_v(tile, n_block + 1, slot.next(), pass);
        wait_turn();
        mma_qk(s, slot);
        const unsigned k_empty = shared.kv_empty(slot.stage);
        slot.advance();
        mma_pv(o, p_fragment, slot, accumulate);
        pass_turn();
        load_elements(elements, tile, n_block);
        wgmma_wait_group<1>();
        pin(s);
        arrive_by_warp(k_empty);
        const bool rescales = mask_and_softmax(s, elements, softmax, tile, keys, n_block, pass);
        // This branch, or one in weigh(), needs the sums of the weights. It is before the wait, so the compiler must
        // compute the exponentials before the wait, too.
        if (rescales) softmax.correct(s);
        RAPT_TRACE_NEXT("consumer #: wait P.V");
        wgmma_wait_group<0>();
        pin(o);
        release();
        const bool moved = promotion.moves(o);
        if (rescales) rescale(o, softmax.output_scale), promotion.rescale(softmax.output_scale);
        p_fragment.pack(s);
        accumulate = !moved;
      }
      last_pv(o, p_fragment, accumulate, tile, n_block, pass);
      accumulate = true;
    } while (cfg.skips_hidden_blocks() && n_block-- >= all.begin);
    promotion.finish(o);
    RAPT_TRACE_NEXT("consumer #: epilogue");
    const Epilogue<cfg> epilogue{p, tile, pass, q_rows()};
    const bool finite = epilogue.store(softmax, o, tile.first_row() + 64 * group);
    arrive_by_warp(shared.q_empty(q_slot.stage));
    q_slot.advance();
    return finite;
  }

 private:
  // Returns whether the mask hides the next block from all rows of the warpgroup. If not, sets `masks`.
  bool is_hidden() {
    if constexpr (cfg.skips_hidden_blocks()) {
      const MaskedBlock block = boxes().masked_block();
      masks = !block.is_whole;
      return block.is_hidden;
    }
    return false;
  }
  // QK of the first block that the rows see. No PV runs at this time.
  void first_qk(SFragment& s, typename Scores::Elements& elements, const RowTile<cfg>& tile, int n_block) {
    load_elements(elements, tile, n_block);
    wait_turn();
    mma_qk(s, slot);
    pass_turn();
    wgmma_wait_group<0>();
    pin(s);
    release();
  }
  // PV of the block before n_block. Releases n_block, if there is one. If blocks are only skipped at the ends of a
  // tile, also releases all blocks that follow.
  void last_pv(OFragment& o, const PFragment& p_fragment, bool accumulate, const RowTile<cfg>& tile, int n_block,
               NanPass pass) {
    const int first_block = tile.n_blocks().begin;  // read again, because registers are scarce
    const bool before_skipped = n_block >= first_block;
    prepare_v(tile, n_block + 1, before_skipped ? slot.next() : slot, pass);
    if (before_skipped) skip_k();
    mma_pv(o, p_fragment, slot, accumulate);
    wgmma_wait_group<0>();
    pin(o);
    release();
    if constexpr (!cfg.skips_hidden_blocks())
      if (before_skipped) {
        for (--n_block; n_block >= first_block; --n_block) skip(tile, n_block, true, pass);
        skip_v(tile, first_block, pass);
      }
  }

  // Returns the address of this warpgroup's rows of Q in shared memory.
  unsigned q_rows() const { return shared.q(q_slot.stage) + static_cast<unsigned>(group) * 64 * 128; }

  // Waits for K and issues S = Q K^T of a block.
  void mma_qk(SFragment& s, const KvSlot& at) const {
    RAPT_TRACE_NEXT_IF(!barrier_completed(shared.kv_full(at.stage), at.phase), "consumer #: wait K");
    wait_barrier(shared.kv_full(at.stage), at.phase);
    RAPT_TRACE_NEXT("consumer #: Q.K");
    const MatrixDescriptor q = MatrixDescriptor::of(warp_uniform(q_rows()), 1024),
                           k = MatrixDescriptor::of(warp_uniform(shared.kv(at.stage)), k_block.group_bytes());
    pin(s);
    wgmma_fence();
#pragma unroll
    for (int byte = 0; byte < layout.dim * bytes_of(cfg.key_type()); byte += 32) {
      const unsigned column = byte / 128, within = byte % 128;
      Wgmma<cfg.block_n>::template ss<cfg.q, cfg.key_type()>(
          s, q.advanced(column * cfg.block_m() * 128 + within).word(),
          k.advanced(column * k_block.column_bytes() + within).word(), byte > 0);
    }
    wgmma_commit_group();
  }
  // Waits for V and issues O (+)= P V of a block.
  void mma_pv(OFragment& o, const PFragment& p_fragment, const KvSlot& at, bool accumulate) const {
    RAPT_TRACE_NEXT_IF(!barrier_completed(shared.kv_full(at.stage), at.phase), "consumer #: wait V");
    wait_barrier(shared.kv_full(at.stage), at.phase);
    RAPT_TRACE_NEXT("consumer #: P.V");
    constexpr int group_bytes = v_block.group_bytes(), column_bytes = v_block.column_bytes();
    const MatrixDescriptor v = MatrixDescriptor::of(warp_uniform(shared.kv(at.stage)), group_bytes, column_bytes);
    pin(o);
    wgmma_fence();
#pragma unroll
    for (int term = 0; term < PFragment::terms; ++term)
#pragma unroll
      for (int step = 0; step < PFragment::steps; ++step) {
        // Of transposed V, a step takes 32 bytes of each row. Otherwise it takes two groups of eight rows.
        const int at_byte = cfg.transposes_v() ? step / 4 * column_bytes + step % 4 * 32 : step * 2 * group_bytes;
        Wgmma<layout.dim_v>::template rs<cfg.weight_type(), cfg.value_type()>(
            o, p_fragment.term[term][step], v.advanced(at_byte).word(), accumulate || term + step > 0);
      }
    wgmma_commit_group();
  }
  void release() {
    arrive_by_warp(shared.kv_empty(slot.stage));
    slot.advance();
  }
  // Releases a buffer that this warpgroup does not use. First waits until the buffer is full. Otherwise this arrival
  // could count for the block that was in the buffer before.
  void release_unused() {
    wait_barrier(shared.kv_full(slot.stage), slot.phase);
    release();
  }

  // Waits for the bias and the mask of the next block.
  ScoreBoxes<cfg> boxes() const {
    wait_barrier(shared.scores_full(score_slot.stage), score_slot.phase);
    return {shared.bias(score_slot.stage), shared.mask(score_slot.stage), group};
  }
  void release_scores() {
    if constexpr (cfg.boxes) {
      arrive_by_warp(shared.scores_empty(score_slot.stage));
      score_slot.advance();
    }
  }
  // Without boxes, loads the elements of bias and mask for a block from global memory, while Q.K runs.
  void load_elements(typename Scores::Elements& elements, const RowTile<cfg>& tile, int n_block) const {
    if constexpr (cfg.boxes) return;
    const ScoreRows<cfg> rows{p, tile, group};
    Scores{p, rows, n_block * cfg.block_n + static_cast<int>(threadIdx.x % 4) * 2}.load(elements);
  }
  // A soft cap alone can be computed together with the exponentials.
  static constexpr bool fuses_soft_cap = cfg.softcap && ScoreRows<cfg>::softmax_scales && !cfg.mask &&
                                         !has_user_score && !has_score_descales(cfg.q, cfg.k);
  // Modifies and masks scores, and replaces them by weights. Returns whether correct() and rescale() must follow.
  bool mask_and_softmax(SFragment& s, typename Scores::Elements& elements, RowSoftmax<cfg>& softmax,
                        const RowTile<cfg>& tile, const typename RowTile<cfg>::KeyRanges& keys, int n_block,
                        NanPass pass) {
    RAPT_TRACE_NEXT("consumer #: softmax");
    const int key = n_block * cfg.block_n;
    if constexpr (fuses_soft_cap) {
      const SoftCap cap{p.tanh};
      const bool masked = key + cfg.block_n > keys.full.end || (cfg.causal_or_local && key < keys.full.begin);
      if (!masked && softmax.is_steady && __all_sync(~0u, cap.all_small(s))) return softmax.weigh_capped(s, cap);
    }
    if constexpr (cfg.k_descale_block > 0) scale_by_key<cfg>(p, tile, s, key);
    if constexpr (Scores::used) {
      const ScoreRows<cfg> rows{p, tile, group};
      if constexpr (cfg.boxes && cfg.bias != DType::none) boxes().load_bias(elements);
      apply_score_chain(Scores{p, rows, key + static_cast<int>(threadIdx.x % 4) * 2}, s, elements);
      if constexpr (cfg.boxes && cfg.mask)
        if (masks) boxes().mask_scores(s);
      release_scores();
    }
    if (key + cfg.block_n > keys.full.end) mask<false>(s, tile, key);
    if (cfg.causal_or_local && key < keys.full.begin) mask<true>(s, tile, key);
    return softmax.weigh(s, pass);
  }
  // Masks the scores of keys before (at_begin) or after those that a row sees.
  template <bool at_begin>
  void mask(SFragment& s, const RowTile<cfg>& tile, int key) const {
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32 % 4);
    const Band band = tile.band();
    const int first_row = tile.first_row() + 64 * group;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = (first_row + 16 * warp + lane / 4 + 8 * half) / cfg.packed_heads, shift = key + lane % 4 * 2;
      const int edge = (!cfg.causal_or_local ? band.seqlen_k : at_begin ? band.first(i) : band.past(i)) - shift;
#pragma unroll
      for (int n = 0; n < n_tiles; ++n)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          float& x = s[0][n][2 * half + j];
          x = (8 * n + j < edge) != at_begin ? x : minus_infinity;
        }
    }
  }
  // Rewrites V of a block if this is a NaN pass, or if rows after the sequence's keys can hold values other than zero.
  // All consumer warpgroups call this function once for each block, in the same order, and before they take their turn.
  void prepare_v(const RowTile<cfg>& tile, int n_block, const KvSlot& at, NanPass pass) const {
    const int keys = tile.band().seqlen_k - n_block * cfg.block_n;
    // Converted V ends in zeros.
    if (pass == NanPass::normal && (cfg.converts_v() || keys >= cfg.block_n || !tile.foreign_tail())) return;
    wait_barrier(shared.kv_full(at.stage), at.phase);
    rewrite_v_for_pass<cfg>(shared, at.stage, keys, pass, threadIdx.x - 128);
  }
  // Releases K of a block without using it. If `with_v` is true, also releases V of the block that was visited before,
  // without using it.
  void skip(const RowTile<cfg>& tile, int n_block, bool with_v, NanPass pass) {
    if (with_v) prepare_v(tile, n_block + 1, slot.next(), pass);
    skip_k();
    if (with_v) release_unused();
  }
  void skip_k() {
    wait_turn(), pass_turn();
    RAPT_TRACE_NEXT("consumer #: skip");
    release_unused();
    if constexpr (cfg.boxes) boxes(), release_scores();
  }
  void skip_v(const RowTile<cfg>& tile, int n_block, NanPass pass) {
    RAPT_TRACE_NEXT("consumer #: skip");
    prepare_v(tile, n_block, slot, pass);
    release_unused();
  }

  // With ping_pong, one warpgroup issues its products while the others compute softmax.
  void wait_turn() const {
    if constexpr (cfg.ping_pong) {
      RAPT_TRACE_NEXT("consumer #: wait turn");
      wait_named(Shared::first_turn + static_cast<unsigned>(group), 256);
    }
  }
  void pass_turn() const {
    if constexpr (cfg.ping_pong)
      arrive_named(Shared::first_turn + static_cast<unsigned>(group + 1 == cfg.warpgroups ? 0 : group + 1), 256);
  }
};

// If a stored value is not finite, adds the tile to the list of tiles to compute again. All consumer warps call this
// after a normal pass. The first warp with such a value adds the tile.
template <const Sm90Config& cfg>
inline void list_if_not_finite(const SharedState<cfg>& shared, const RowTile<cfg>& tile, bool finite) {
  if (!__any_sync(~0u, !finite) || threadIdx.x % 32 != 0 || exchange_shared(tile.listed(), 1) != 0) return;
  store_shared(shared.redo(add_shared(shared.redo_count(), 1)), static_cast<unsigned>(tile.item()));
}

// The consumer warpgroups' loop over the tiles of the CTA.
template <const Sm90Config& cfg>
inline void consume(const Sm90Params& params, const SharedState<cfg>& shared) {
  using Shared = SharedState<cfg>;
  const AttentionParams& p = params.attention;
  const int group = static_cast<int>(warp_uniform(threadIdx.x / 128)) - 1;
  Consumer<cfg> consumer{p, shared, group, Promotion<cfg>::sums_of(params)};
  if (cfg.ping_pong && group == cfg.warpgroups - 1) arrive_named(Shared::first_turn, 256);
#pragma unroll 1
  for (StageSlot<2> place;; place.advance()) {
    RAPT_TRACE_NEXT("consumer #: wait tile");
    wait_barrier(shared.tile_full(place.stage), place.phase);
    const RowTile<cfg> tile{shared.tile(place.stage)};
    const NanPass pass = tile.pass();
    if (pass == no_more) break;
    if (pass == list_complete) {
      wait_named(Shared::all_consumers, Shared::consumers);
      arrive_by_warp(shared.redo_listed());
    } else {
      if (p.seqused_q.present() && pass == NanPass::normal) clear_unused(p, tile);
      bool finite = true;
      if (tile.first_row() < tile.seqlen_q()) finite = consumer.run_tile(tile, pass);
      if (pass == NanPass::normal) list_if_not_finite(shared, tile, finite);
    }
    arrive_by_warp(shared.tile_empty(place.stage));
  }
  RAPT_TRACE_END();
}

template <const Sm90Config& cfg>
void attention_sm90(const Sm90Params& params) {
  RAPT_TRACE_BEGIN("start");
  RAPT_TRACE_COUNTERS();
  extern __shared__ __align__(1024) char memory[];
  const SharedState<cfg> shared{shared_address(memory)};
  if (threadIdx.x == 0) prefetch_map(params.q), prefetch_map(params.k), prefetch_map(params.v), shared.init();
  __syncthreads();
  griddepcontrol_wait<cfg.programmatic>();
  if constexpr (cfg.converts()) convert_kv<cfg>(params, shared);
  if (warp_uniform(threadIdx.x / 128) == 0) {
    give_registers<cfg.producer_registers()>();
    if (threadIdx.x < (cfg.page_rows > 0 ? 32 : 1)) produce<cfg>(params, shared);
  } else {
    take_registers<cfg.consumer_registers()>();
    consume<cfg>(params, shared);
  }
}

}  // namespace rapt
