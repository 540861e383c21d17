// Rung persistent of the ladder: ws_p1 with a loop over row tiles. The grid has at most as many blocks as the GPU holds
// at once (lab/ladder_bench.cpp); block b takes tiles b, b + grid, b + 2 grid and so on. The ring stays full between
// two tiles: producers load the first keys of the next tile while consumers still work on this one. Replaces
// attention_sm80.cuh (lab/ladder.cpp).
#pragma once

#include "tile_ring.cuh"

namespace rapt {
namespace ladder {

template <const Sm80Config& cfg>
struct PersistentAttention : RingAttention<cfg> {
  using Base = RingAttention<cfg>;
  using Base::p;
  using Base::tile;

  const Sm80Params& params;
  const unsigned tiles;  // number of row tiles of the problem

  PersistentAttention(const Sm80Params& all, const void* q, const void* shared)
      : Base(all, q, shared), params(all), tiles(static_cast<unsigned>(p.batch * p.heads_q) * all.scheduler.m_blocks) {}

  void run() {
    this->ring.init();
    if (this->is_producer())
      produce();
    else
      consume();
  }

  void produce() {
    int t = 0;  // number of the K or V tile in the ring, counted over all row tiles
    for (unsigned work = blockIdx.x; work < tiles; work += gridDim.x) {
      tile = RowTile(params, cfg, work);
      for (int n = 0; n < tile.steps; ++n, t += 2) this->fill_step(t, n);
    }
    this->finish_copies();
  }

  void consume() {
    int t = 0;
    this->load_q(tile.q);  // the first row tile of this block, number blockIdx.x
    for (unsigned work = blockIdx.x; work < tiles; work += gridDim.x) {
      tile = RowTile(params, cfg, work);
      unsigned q[dim / 16][4];
      this->receive_q(q);
      load_next_q(work + gridDim.x);
      for (int n = 0; n < tile.steps; ++n, t += 2) this->step(q, t);
      this->store_rows();
      clear();
    }
  }

  // Q is in registers, so its place in shared memory is free for the next tile.
  void load_next_q(unsigned work) const {
    __syncwarp();  // waits until all lanes have read their rows
    if (work < tiles) this->load_q(RowTile(params, cfg, work).q);
  }

  void clear() {
#pragma unroll
    for (float(&part)[4] : this->o)
#pragma unroll
      for (float& x : part) x = 0.0f;
#pragma unroll
    for (int half = 0; half < 2; ++half) this->max[half] = minus_infinity, this->sum[half] = 0.0f;
  }
};

}  // namespace ladder

template <const Sm80Config& cfg>
inline void attention_sm80(const Sm80Params& p) {
  extern __shared__ __align__(16) char shared[];
  __shared__ __align__(16) char q[ladder::PersistentAttention<cfg>::q_bytes];
  ladder::PersistentAttention<cfg>(p, q, shared).run();
}

}  // namespace rapt
