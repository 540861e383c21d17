// The producer thread of attention_sm90: it selects the CTA's tiles and loads them with TMA. Device only.
#pragma once

#include "ptx/tma.cuh"
#include "row_tile.cuh"
#include "shared_state.cuh"

namespace rapt {

template <Sm90Config cfg>
struct Producer {
  using Tile = RowTile<cfg>;
  static constexpr Sm90Layout layout{cfg};

  const Sm90Params& params;
  const SharedState<cfg>& shared;
  StageSlot<cfg.stages> slot{};
  StageSlot<2> place{};
  unsigned q_phase = 0;

  // Describes a tile to the consumers, then loads Q and all blocks of K and V, waiting for free buffers.
  void do_tile(unsigned item, NanPass pass) {
    wait_barrier(shared.tile_empty(place.stage), place.phase ^ 1);
    const Tile tile{shared.tile(place.stage)};
    if (!tile.find(params.attention, params.scheduler, item)) return;
    announce(pass);
    if (tile.first_row() >= tile.seqlen_q()) return;
    const AttentionParams& p = params.attention;
    const bool packed = p.cu_seqlens_q.present();
    const int batch = packed ? 0 : tile.batch(), head = tile.head();
    const auto head_k = static_cast<int>(params.scheduler.group.quotient(static_cast<unsigned>(head)));
    const int first_k = packed ? static_cast<int>(clamped(p.cu_seqlens_k[tile.batch()], 0, p.total_k)) : 0;
    wait_barrier(shared.q_empty(), q_phase ^ 1);
    q_phase ^= 1;
    load(shared.q_full(), shared.q(0), params.q, layout.columns, cfg.block_m(), tile.first_q() + tile.first_row(), head,
         batch);
    const NBlocks n_blocks = tile.n_blocks();
#pragma unroll 1
    for (int n_block = n_blocks.end - 1; n_block >= n_blocks.begin; --n_block, slot.advance()) {
      const int key = first_k + n_block * cfg.block_n;
      wait_barrier(shared.k_empty(slot.stage), slot.phase ^ 1);
      load(shared.k_full(slot.stage), shared.k(slot.stage), params.k, layout.columns, cfg.block_n, key, head_k, batch);
      wait_barrier(shared.v_empty(slot.stage), slot.phase ^ 1);
      load(shared.v_full(slot.stage), shared.v(slot.stage), params.v, layout.columns_v, cfg.block_n, key, head_k,
           batch);
    }
  }

  // Sends a message that is not a tile.
  void announce_alone(NanPass what) {
    wait_barrier(shared.tile_empty(place.stage), place.phase ^ 1);
    announce(what);
  }

 private:
  void announce(NanPass pass) {
    Tile{shared.tile(place.stage)}.set_pass(pass);
    arrive(shared.tile_full(place.stage));
    place.advance();
  }
  static void load(unsigned full, unsigned to, const TensorMap& map, int columns, int rows, int row, int head,
                   int batch) {
    arrive_expecting(full, static_cast<unsigned>(columns * rows * 128));
#pragma unroll
    for (int column = 0; column < columns; ++column)
      copy_box(to + static_cast<unsigned>(column * rows * 128), map, full, column * 64, row, head, batch);
  }
};

template <Sm90Config cfg>
inline void produce(const Sm90Params& params, const SharedState<cfg>& shared) {
  prefetch_map(params.q), prefetch_map(params.k), prefetch_map(params.v);
  Producer<cfg> producer{params, shared};
  unsigned round = 0, item = blockIdx.x;
#pragma unroll 1
  for (bool more = item < params.items; more;) {
    const unsigned next = cfg.dynamic ? gridDim.x + atomicAdd(params.counters, 1u) : params.items;
    producer.do_tile(item, NanPass::normal);
    item = next, more = item < params.items;
    if constexpr (cfg.causal_or_local) {
      // Tiles with non-finite values are computed again in two passes: at the end, or when the list may be full.
      if (more && load_shared(shared.redo_count()) < Sm90Layout::redo_capacity - 4) continue;
      producer.announce_alone(list_complete);
      wait_barrier(shared.redo_listed(), round++ & 1);
      const unsigned count = load_shared(shared.redo_count());
#pragma unroll 1
      for (unsigned turn = 0; turn < 2 * count; ++turn)
        producer.do_tile(load_shared(shared.redo(turn / 2)),
                         turn % 2 == 0 ? NanPass::zero_non_finite : NanPass::count_non_finite);
      store_shared(shared.redo_count(), 0);
    }
  }
  producer.announce_alone(no_more);
  // The last CTA resets the counters.
  if (cfg.dynamic && atomicInc(params.counters + 1, gridDim.x - 1) == gridDim.x - 1) params.counters[0] = 0;
}

}  // namespace rapt
