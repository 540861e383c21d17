// Rung 4 of the ladder: fused. Scores become weights in the registers of mma.sync, and cp.async loads the next keys
// during the work on the current ones: two stages. Replaces attention_sm80.cuh (lab/ladder.cpp).
#pragma once

#include "mma_tile.cuh"

namespace rapt {
namespace ladder {

template <Sm80Config cfg>
struct PipelinedAttention : MmaTiles<cfg> {
  using Tiles = MmaTiles<cfg>;
  using Tiles::keys;
  using Tiles::n_tiles;
  using Tiles::p;
  using Tiles::rows;
  using Tiles::threads;
  using Tiles::tile;
  static_assert(cfg.stages == 2);

  float o[dim / 8][4] = {};
  float max[2] = {minus_infinity, minus_infinity}, sum[2] = {};  // of rows lane / 4 and lane / 4 + 8

  PipelinedAttention(const Sm80Params& params, const void* q, const void* kv) : Tiles(params, q, kv) {}

  template <int count>
  void load(unsigned to, const unsigned short* from, index_t row_stride) const {
    for_each_chunk<count, threads>(from, row_stride, [&](int row, int column, const unsigned short* at) {
      cp_async_16(tile_address(to, row, column), at, true);
    });
  }

  // One group of copies. It is empty after the last step.
  void load_keys(int step) const {
    if (step < tile.steps) {
      load<keys>(this->k_tile(step), tile.k + static_cast<index_t>(step) * keys * p.k.row, p.k.row);
      load<keys>(this->v_tile(step), tile.v + static_cast<index_t>(step) * keys * p.v.row, p.v.row);
    }
    cp_async_commit_group();
  }

  // Turns the scores of row half `half` into weights, and rescales the output from the old maximum.
  void softmax(float (&s)[n_tiles][4], int half) {
    float m = max[half];
#pragma unroll
    for (int n = 0; n < n_tiles; ++n)
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) m = fmaxf(m, s[n][i] *= p.scale);
    m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
    m = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
    const float rescale = exp2_approx((max[half] - m) * log2_e);
    max[half] = m;
    sum[half] *= rescale;
#pragma unroll
    for (int n = 0; n < n_tiles; ++n)
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) sum[half] += s[n][i] = exp2_approx((s[n][i] - m) * log2_e);
#pragma unroll
    for (int n = 0; n < dim / 8; ++n) o[n][2 * half] *= rescale, o[n][2 * half + 1] *= rescale;
  }

  void step(const unsigned (&q)[dim / 16][4], int n) {
    float s[n_tiles][4];
    this->scores(s, q, this->k_tile(n));
    softmax(s, 0);
    softmax(s, 1);
#pragma unroll
    for (int t = 0; t < n_tiles; t += 2) {  // two accumulator tiles of s have the layout of one operand tile
      const unsigned weights[4] = {pack_f16x2(s[t][0], s[t][1]), pack_f16x2(s[t][2], s[t][3]),
                                   pack_f16x2(s[t + 1][0], s[t + 1][1]), pack_f16x2(s[t + 1][2], s[t + 1][3])};
      this->accumulate(o, weights, this->v_tile(n), t * 8);
    }
  }

  void run() {
    load<rows>(this->q_tile, tile.q, p.q.row);
    load_keys(0);
    unsigned q[dim / 16][4];
    for (int n = 0; n < tile.steps; ++n) {
      load_keys(n + 1);
      cp_async_wait_group(1);
      __syncthreads();
      if (n == 0) this->read_q(q);
      step(q, n);
      __syncthreads();  // all threads have read this stage; the next copies overwrite it
    }
#pragma unroll
    for (float& total : sum) {
      total += __shfl_xor_sync(~0u, total, 1);
      total += __shfl_xor_sync(~0u, total, 2);
    }
    this->store(o, sum);
  }
};

}  // namespace ladder

template <Sm80Config cfg>
inline void attention_sm80(const Sm80Params& p) {
  extern __shared__ __align__(16) char shared[];
  __shared__ __align__(16) char q[ladder::PipelinedAttention<cfg>::q_bytes];
  ladder::PipelinedAttention<cfg>(p, q, shared).run();
}

}  // namespace rapt
