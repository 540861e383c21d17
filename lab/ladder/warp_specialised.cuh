// Rungs ws_p1 and ws_p2 of the ladder: warp-specialised. One or two producer warps only load; four consumer warps only
// compute. They meet at the barriers of a ring of tiles (tile_ring.cuh), and no warp waits for the whole block. The
// number of producer warps is the block's warps minus its consumers: warps_m - block_m / 16. Replaces
// attention_sm80.cuh (lab/ladder.cpp).
#pragma once

#include "tile_ring.cuh"

namespace rapt {
namespace ladder {

template <const Sm80Config& cfg>
struct WarpSpecialisedAttention : RingAttention<cfg> {
  using Base = RingAttention<cfg>;
  using Base::Base;
  using Base::tile;

  void run() {
    this->ring.init();
    if (this->is_producer())
      produce();
    else
      consume();
  }

  void produce() const {
    for (int n = 0; n < tile.steps; ++n) this->fill_step(2 * n, n);
    this->finish_copies();
  }

  void consume() {
    unsigned q[dim / 16][4];
    this->load_q(tile.q);
    this->receive_q(q);
    for (int n = 0; n < tile.steps; ++n) this->step(q, 2 * n);
    this->store_rows();
  }
};

}  // namespace ladder

template <const Sm80Config& cfg>
inline void attention_sm80(const Sm80Params& p) {
  extern __shared__ __align__(16) char shared[];
  __shared__ __align__(16) char q[ladder::WarpSpecialisedAttention<cfg>::q_bytes];
  ladder::WarpSpecialisedAttention<cfg>(p, q, shared).run();
}

}  // namespace rapt
