// Rung 3 of the ladder: tensor cores. There is one stage, so the block waits while a tile is loaded. Scores and weights
// go through shared memory, as in a kernel that does not know the layout of a fragment (WMMA). In shared memory a pair
// of lanes owns a full row. Replaces attention_sm80.cuh (lab/ladder.cpp).
#pragma once

#include "mma_tile.cuh"

namespace rapt {
namespace ladder {

template <const Sm80Config& cfg>
struct TensorAttention : MmaTiles<cfg> {
  using Tiles = MmaTiles<cfg>;
  using Tiles::keys;
  using Tiles::lane;
  using Tiles::n_tiles;
  using Tiles::p;
  using Tiles::rows;
  using Tiles::threads;
  static constexpr int pitch = keys + 4;  // floats of a row of scores; later its first half holds the weights
  static_assert(keys == 64 && cfg.stages == 1);

  float* const scratch;                    // this warp's 16 rows of scores
  float o[dim / 8][4] = {};                // outputs of rows lane / 4 and lane / 4 + 8
  float max = minus_infinity, sum = 0.0f;  // running maximum and sum of row lane / 2

  TensorAttention(const Sm80Params& params, const void* kv, float* scores)
      : Tiles(params, scores, kv), scratch(scores + this->warp * 16 * pitch) {}

  template <int count>
  void load(void* to, const unsigned short* from, index_t row_stride) const {
    for_each_chunk<count, threads>(from, row_stride, [&](int row, int column, const unsigned short* at) {
      *reinterpret_cast<uint4*>(static_cast<char*>(to) + row * tile_pitch + column * 2) =
          *reinterpret_cast<const uint4*>(at);
    });
  }

  void write_scores(const float (&s)[n_tiles][4]) const {
#pragma unroll
    for (int n = 0; n < n_tiles; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        *reinterpret_cast<float2*>(scratch + (lane / 4 + 8 * half) * pitch + n * 8 + lane % 4 * 2) =
            float2{s[n][2 * half], s[n][2 * half + 1]};
    __syncwarp();
  }

  // Turns the scores of row lane / 2 into weights (f16 values, stored in the same place). Returns the factor by which
  // the row's output must be rescaled.
  float softmax() {
    float* const half_row = scratch + lane / 2 * pitch + lane % 2 * 32;
    float x[32];
    float m = max;
#pragma unroll
    for (int i = 0; i < 32; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(half_row + i);
      x[i] = four.x * p.scale, x[i + 1] = four.y * p.scale, x[i + 2] = four.z * p.scale, x[i + 3] = four.w * p.scale;
      m = fmaxf(fmaxf(fmaxf(m, x[i]), fmaxf(x[i + 1], x[i + 2])), x[i + 3]);
    }
    m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
    const float rescale = exp2_approx((max - m) * log2_e);
    max = m;
    sum *= rescale;
    unsigned weights[16];
#pragma unroll
    for (int i = 0; i < 32; i += 2) {
      const float low = exp2_approx((x[i] - m) * log2_e), high = exp2_approx((x[i + 1] - m) * log2_e);
      sum += low + high;
      weights[i / 2] = pack_f16x2(low, high);
    }
    __syncwarp();  // waits until both lanes have read the row
    uint4* const to = reinterpret_cast<uint4*>(scratch + lane / 2 * pitch) + lane % 2 * 4;
#pragma unroll
    for (int i = 0; i < 16; i += 4) to[i / 4] = uint4{weights[i], weights[i + 1], weights[i + 2], weights[i + 3]};
    __syncwarp();
    return rescale;
  }

  // In: a value of row lane / 2. Out: the same kind of value for the two rows of this lane's accumulators.
  void spread(float of_row, float (&of_halves)[2]) const {
    of_halves[0] = __shfl_sync(~0u, of_row, lane / 4 * 2);
    of_halves[1] = __shfl_sync(~0u, of_row, (lane / 4 + 8) * 2);
  }

  void step(const unsigned (&q)[dim / 16][4]) {
    float s[n_tiles][4];
    this->scores(s, q, this->k_tile(0));
    write_scores(s);
    float rescale[2];
    spread(softmax(), rescale);
#pragma unroll
    for (float(&part)[4] : o)
#pragma unroll
      for (int i = 0; i < 4; ++i) part[i] *= rescale[i / 2];
#pragma unroll
    for (int key = 0; key < keys; key += 16) {
      unsigned weights[4];
      ldmatrix_x4(weights,
                  shared_address(scratch) + static_cast<unsigned>(lane % 16 * pitch * 4 + (key + lane / 16 * 8) * 2));
      this->accumulate(o, weights, this->v_tile(0), key);
    }
  }

  // Q goes to registers through the memory that holds the scores later.
  void run(char* kv, float* scores) {
    load<rows>(scores, this->tile.q, p.q.row);
    __syncthreads();
    unsigned q[dim / 16][4];
    this->read_q(q);
    for (int n = 0; n < this->tile.steps; ++n) {
      load<keys>(kv, this->tile.k + static_cast<index_t>(n) * keys * p.k.row, p.k.row);
      load<keys>(kv + Tiles::kv_bytes, this->tile.v + static_cast<index_t>(n) * keys * p.v.row, p.v.row);
      __syncthreads();
      step(q);
      __syncthreads();  // waits until all threads have read K and V
    }
    float sums[2];
    spread(sum + __shfl_xor_sync(~0u, sum, 1), sums);
    this->store(o, sums);
  }
};

}  // namespace ladder

template <const Sm80Config& cfg>
inline void attention_sm80(const Sm80Params& p) {
  extern __shared__ __align__(16) char shared[];
  __shared__ __align__(16) float scores[cfg.block_m * ladder::TensorAttention<cfg>::pitch];
  ladder::TensorAttention<cfg>(p, shared, scores).run(shared, scores);
}

}  // namespace rapt
