// The addresses of objects in the shared memory of a CTA of attention_sm90: buffers, barriers, tiles, and the list of
// tiles to compute again. Device only.
#pragma once

#include "ptx/copy.cuh"
#include "ptx/tma.cuh"
#include "sm90.h"

namespace rapt {

// A position in a ring of buffers, and the parity of the phase in which this buffer becomes full.
template <int stages>
struct StageSlot {
  int stage = 0;
  unsigned phase = 0;
  void advance() {
    if (++stage == stages) stage = 0, phase ^= 1;
  }
  StageSlot next() const {
    StageSlot slot = *this;
    slot.advance();
    return slot;
  }
};

// Each warp arrives once, after all of its lanes have reached this call.
inline void arrive_by_warp(unsigned barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) arrive(barrier);
}

template <const Sm90Config& cfg>
struct SharedState {
  static constexpr Sm90Layout layout{cfg};
  static constexpr unsigned consumers = 128 * cfg.warpgroups, consumer_warps = 4 * cfg.warpgroups;
  // Ids of named barriers: one where all consumer warpgroups meet, then one for each warpgroup's turn (ping_pong), and
  // one for the votes in each warpgroup (score_boxes.cuh).
  static constexpr unsigned all_consumers = 1, first_turn = 2, first_vote = first_turn + cfg.warpgroups;

  unsigned base;

  unsigned q(int stage) const { return base + layout.q_at + static_cast<unsigned>(stage * layout.q_bytes); }
  unsigned kv(int stage) const { return base + layout.kv_at + static_cast<unsigned>(stage * layout.kv_bytes); }

  // With boxes: the buffers of the bias and the mask of a block of keys.
  unsigned bias(int stage) const {
    return base + layout.scores_at + static_cast<unsigned>(stage * (layout.bias_bytes + layout.mask_bytes));
  }
  unsigned mask(int stage) const { return bias(stage) + layout.bias_bytes; }

  unsigned barrier(int i) const { return base + layout.barriers_at + 8 * static_cast<unsigned>(i); }
  unsigned q_full(int stage) const { return barrier(stage); }
  unsigned q_empty(int stage) const { return barrier(cfg.q_stages + stage); }
  unsigned kv_full(int stage) const { return barrier(2 * cfg.q_stages + stage); }
  unsigned kv_empty(int stage) const { return barrier(2 * cfg.q_stages + cfg.kv_stages + stage); }
  unsigned tile_full(int place) const { return barrier(2 * cfg.q_stages + 2 * cfg.kv_stages + place); }
  unsigned tile_empty(int place) const { return tile_full(2 + place); }
  unsigned redo_listed() const { return tile_full(4); }
  unsigned scores_full(int stage) const { return tile_full(5 + stage); }
  unsigned scores_empty(int stage) const { return scores_full(Sm90Layout::score_stages(cfg) + stage); }

  // At layout.tiles_at there are two tile descriptions (RowTile), the number of tiles to compute again, and the item
  // numbers of these tiles.
  unsigned tile(int place) const { return base + layout.tiles_at + 64 * static_cast<unsigned>(place); }
  unsigned redo_count() const { return tile(2); }
  unsigned redo(unsigned i) const { return tile(2) + 4 + 4 * i; }

  // Paged K and V: the entries of the block table for a block of keys.
  unsigned pages(int n_block) const {
    return base + layout.pages_at +
           static_cast<unsigned>(n_block % Sm90Layout::page_lists * 4 * Sm90Layout::pages(cfg));
  }

  // One thread calls this, before __syncthreads. The producer thread arrives on "full" barriers. The warps that compute
  // arrive on "empty" barriers.
  void init() const {
    for (int stage = 0; stage < cfg.q_stages; ++stage)
      init_barrier(q_full(stage), 1), init_barrier(q_empty(stage), consumer_warps);
    for (int stage = 0; stage < cfg.kv_stages; ++stage)
      init_barrier(kv_full(stage), 1), init_barrier(kv_empty(stage), consumer_warps);
    for (int place = 0; place < 2; ++place)
      init_barrier(tile_full(place), 1), init_barrier(tile_empty(place), consumer_warps);
    init_barrier(redo_listed(), consumer_warps);
    for (int stage = 0; stage < Sm90Layout::score_stages(cfg); ++stage)
      init_barrier(scores_full(stage), 1), init_barrier(scores_empty(stage), consumer_warps);
    store_shared(redo_count(), 0);
    fence_barrier_init();
  }
};

}  // namespace rapt
