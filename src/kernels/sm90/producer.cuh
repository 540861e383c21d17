// The warp of attention_sm90 that loads, and the order in which a block takes its tiles. Device only.
#pragma once

#include "ptx/tma.cuh"
#include "rows.cuh"
#include "shared_state.cuh"

namespace rapt {

struct Sm90Params {
  TensorMap q, k, v;
  AttentionParams attention;
  TileOrder order;
  unsigned items = 0;            // tiles of query rows of the whole problem
  unsigned* counters = nullptr;  // of a dynamic schedule: tiles that were taken, blocks that have ended; both end as 0
};

// What stands in the place of an item: the tiles that were listed are done again; the block ends.
constexpr unsigned redo_round = ~0u - 1, no_more = ~0u;

// Items as the warpgroups that compute read them.
template <Sm90Config cfg>
struct ItemReader {
  const SharedState<cfg>& shared;
  StageSlot<2> place{};

  unsigned next() {
    wait_barrier(shared.item_full(place.stage), place.phase);
    const unsigned item = load_shared(shared.item(place.stage));
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(shared.item_empty(place.stage));
    place.advance();
    return item;
  }
};

template <Sm90Config cfg>
struct Producer {
  static constexpr Sm90Layout layout{cfg};

  const Sm90Params& params;
  const SharedState<cfg>& shared;
  StageSlot<cfg.stages> slot{};
  StageSlot<2> place{};
  unsigned q_phase = 0;

  void publish(unsigned item) {
    wait_barrier(shared.item_empty(place.stage), place.phase ^ 1);
    store_shared(shared.item(place.stage), item);
    arrive(shared.item_full(place.stage));
    place.advance();
  }

  // Loads what the warpgroups multiply, in the order in which they need it, as far ahead as stages are empty.
  void load(unsigned item) {
    RowTile<cfg> tile;
    if (!tile.find(params.attention, params.order, item)) return;
    const bool packed_q = params.attention.cu_seqlens_q.present(), packed_k = packed_q;
    const int row = static_cast<int>(tile.first_q) + tile.first_row, first_k = static_cast<int>(tile.first_k);
    const int batch_q = packed_q ? 0 : tile.batch, batch_k = packed_k ? 0 : tile.batch;
    wait_barrier(shared.q_empty(), q_phase ^ 1);
    q_phase ^= 1;
    arrive_expecting(shared.q_full(), layout.q_bytes);
    for (int column = 0; column < layout.columns; ++column)
      copy_box(shared.q(0) + static_cast<unsigned>(column * cfg.block_m() * 128), params.q, shared.q_full(),
               column * 64, row, tile.head, batch_q);
    for (int step = tile.steps.end - 1; step >= tile.steps.begin; --step, slot.advance()) {
      const int key = first_k + step * cfg.block_n;
      load_step(shared.k_empty(slot.stage), shared.k_full(slot.stage), shared.k(slot.stage), params.k, layout.columns,
                key, tile.head_k, batch_k);
      load_step(shared.v_empty(slot.stage), shared.v_full(slot.stage), shared.v(slot.stage), params.v, layout.columns_v,
                key, tile.head_k, batch_k);
    }
  }

 private:
  void load_step(unsigned empty, unsigned full, unsigned to, const TensorMap& map, int columns, int key, int head,
                 int batch) const {
    wait_barrier(empty, slot.phase ^ 1);
    arrive_expecting(full, static_cast<unsigned>(columns * cfg.block_n * 128));
    for (int column = 0; column < columns; ++column)
      copy_box(to + static_cast<unsigned>(column * cfg.block_n * 128), map, full, column * 64, key, head, batch);
  }
};

// By one thread: takes tiles, tells the warpgroups that compute, and loads.
template <Sm90Config cfg>
inline void produce(const Sm90Params& params, const SharedState<cfg>& shared) {
  prefetch_map(params.q), prefetch_map(params.k), prefetch_map(params.v);
  Producer<cfg> producer{params, shared};
  unsigned round = 0;
  const auto redo = [&] {
    producer.publish(redo_round);
    wait_barrier(shared.redo_listed(), round++ & 1);
    const unsigned count = load_shared(shared.redo_count());
    for (unsigned i = 0; i < count; ++i) {
      const unsigned item = load_shared(shared.redo(i));
      producer.load(item), producer.load(item);
    }
    store_shared(shared.redo_count(), 0);
  };
  for (unsigned item = blockIdx.x; item < params.items;) {
    producer.publish(item);
    const unsigned next = cfg.dynamic ? gridDim.x + atomicAdd(params.counters, 1u) : params.items;
    producer.load(item);
    item = next;
    if (cfg.causal_or_local && load_shared(shared.redo_count()) > Sm90Layout::redo_capacity - 4) redo();
  }
  if (cfg.causal_or_local) redo();
  producer.publish(no_more);
  // The last block leaves the counters as it found them.
  if (cfg.dynamic && atomicInc(params.counters + 1, gridDim.x - 1) == gridDim.x - 1) params.counters[0] = 0;
}

}  // namespace rapt
