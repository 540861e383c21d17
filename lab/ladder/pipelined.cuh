// Rung 4 of the ladder: fused. Scores become weights in the registers of mma.sync (mma_rows.cuh). There are two stages:
// cp.async loads the next keys while the block works on the current ones. Replaces attention_sm80.cuh (lab/ladder.cpp).
#pragma once

#include "mma_rows.cuh"

namespace rapt {
namespace ladder {

template <const Sm80Config& cfg>
struct PipelinedAttention : MmaRows<cfg> {
  using Rows = MmaRows<cfg>;
  using Rows::keys;
  using Rows::p;
  using Rows::rows;
  using Rows::threads;
  using Rows::tile;
  static_assert(cfg.stages == 2 && rows == 16 * cfg.warps_m);

  using Rows::Rows;

  void run() {
    load_async<rows, threads>(this->q_tile, tile.q, p.q.row);
    load_keys(0);
    unsigned q[dim / 16][4];
    for (int n = 0; n < tile.steps; ++n) {
      load_keys(n + 1);
      cp_async_wait_group(1);
      __syncthreads();
      if (n == 0) this->read_q(q);
      step(q, n);
      __syncthreads();  // waits until all threads have read this stage, because the next copies overwrite it
    }
    this->store_rows();
  }

  void step(const unsigned (&q)[dim / 16][4], int n) {
    float s[Rows::n_tiles][4];
    this->scores(s, q, this->k_tile(n));
    this->softmax(s, 0);
    this->softmax(s, 1);
    this->add_values(s, this->v_tile(n));
  }

  // Starts one group of copies. After the last step the group is empty.
  void load_keys(int step) const {
    if (step < tile.steps) {
      const index_t key = static_cast<index_t>(step) * keys;
      load_async<keys, threads>(this->k_tile(step), tile.k + key * p.k.row, p.k.row);
      load_async<keys, threads>(this->v_tile(step), tile.v + key * p.v.row, p.v.row);
    }
    cp_async_commit_group();
  }
};

}  // namespace ladder

template <const Sm80Config& cfg>
inline void attention_sm80(const Sm80Params& p) {
  extern __shared__ __align__(16) char shared[];
  __shared__ __align__(16) char q[ladder::PipelinedAttention<cfg>::q_bytes];
  ladder::PipelinedAttention<cfg>(p, q, shared).run();
}

}  // namespace rapt
