// Rung 2 of the ladder: shared memory holds tiles of floats, which are read from global memory 16 bytes at a time.
// Unrolled fused multiply-adds run on the CUDA cores. Replaces attention_sm80.cuh (lab/ladder.cpp). A thread owns 4 x 4
// scores and 4 x 4 outputs; the 16 threads of a row are half a warp.
#pragma once

#include "ladder_tile.cuh"

namespace rapt {
namespace ladder {

template <const Sm80Config& cfg>
struct TiledAttention {
  static constexpr int dim = 64, pitch = dim + 4;  // in floats; so 16-byte reads of eight rows use different banks
  static constexpr int rows = cfg.block_m, keys = cfg.block_n, threads = cfg.threads();
  static_assert(cfg.head_dim == dim && cfg.head_dim_v == dim && keys == 64 && rows / 4 * 16 == threads);
  static_assert(4 * (2 * rows + keys) * pitch <= smem_bytes(cfg), "`stages` only sizes the shared memory here");

  const AttentionParams& p;
  const RowTile tile;
  float *const q, *const kv, *const weights;  // kv holds K, then V
  const int lane = static_cast<int>(threadIdx.x) % 16, group = static_cast<int>(threadIdx.x) / 16;
  float o[4][4] = {}, max[4], sum[4] = {};

  TiledAttention(const Sm80Params& params, float* shared)
      : p(params.attention), tile(params, cfg), q(shared), kv(q + rows * pitch), weights(kv + keys * pitch) {
    for (float& m : max) m = minus_infinity;
  }

  template <int count>
  void load(float* to, const unsigned short* from, index_t row_stride) const {
    for_each_chunk<count, threads>(from, row_stride, [&](int row, int column, const unsigned short* at) {
      const uint4 halves = *reinterpret_cast<const uint4*>(at);
      const unsigned words[] = {halves.x, halves.y, halves.z, halves.w};
      float x[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] = f16_to_f32(static_cast<unsigned short>(words[i / 2] >> (i % 2 * 16)));
      float4* const line = reinterpret_cast<float4*>(to + row * pitch + column);
      line[0] = float4{x[0], x[1], x[2], x[3]}, line[1] = float4{x[4], x[5], x[6], x[7]};
    });
  }

  // Four floats of row `r`.
  static float4 read(const float* tile, int r, int column) {
    return *reinterpret_cast<const float4*>(tile + r * pitch + column);
  }
  int row(int i) const { return group * 4 + i; }

  // Scores of rows row(i) and keys lane + 16 j.
  void scores(float (&s)[4][4]) const {
#pragma unroll 4
    for (int d = 0; d < dim; d += 4) {
      float4 a[4], b[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = read(q, row(i), d), b[i] = read(kv, lane + 16 * i, d);
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          s[i][j] = fmaf(a[i].x, b[j].x, s[i][j]), s[i][j] = fmaf(a[i].y, b[j].y, s[i][j]);
          s[i][j] = fmaf(a[i].z, b[j].z, s[i][j]), s[i][j] = fmaf(a[i].w, b[j].w, s[i][j]);
        }
    }
  }

  // Online softmax of the thread's rows. The weights go to shared memory, where all threads of a row read them.
  void softmax(float (&s)[4][4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float m = max[i];
#pragma unroll
      for (float& x : s[i]) m = fmaxf(m, x *= p.scale);
#pragma unroll
      for (int step = 8; step > 0; step /= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, step));
      const float rescale = exp2_approx((max[i] - m) * log2_e);
      max[i] = m;
      sum[i] *= rescale;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float weight = exp2_approx((s[i][j] - m) * log2_e);
        sum[i] += weight;
        o[i][j] *= rescale;
        weights[row(i) * pitch + lane + 16 * j] = weight;
      }
    }
  }

  // Outputs of rows row(i) and columns 4 lane + j.
  void accumulate() {
#pragma unroll 4
    for (int key = 0; key < keys; key += 4) {
      float4 a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = read(weights, row(i), key);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float4 b = read(kv, key + k, lane * 4);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float weight = k == 0 ? a[i].x : k == 1 ? a[i].y : k == 2 ? a[i].z : a[i].w;
          o[i][0] = fmaf(weight, b.x, o[i][0]), o[i][1] = fmaf(weight, b.y, o[i][1]);
          o[i][2] = fmaf(weight, b.z, o[i][2]), o[i][3] = fmaf(weight, b.w, o[i][3]);
        }
      }
    }
  }

  void run() {
    load<rows>(q, tile.q, p.q.row);
    for (int step = 0; step < tile.steps; ++step) {
      load<keys>(kv, tile.k + static_cast<index_t>(step) * keys * p.k.row, p.k.row);
      __syncthreads();
      float s[4][4] = {};
      scores(s);
      softmax(s);
      __syncthreads();  // waits until all threads have read K
      load<keys>(kv, tile.v + static_cast<index_t>(step) * keys * p.v.row, p.v.row);
      __syncthreads();
      accumulate();
      __syncthreads();
    }
    store();
  }

  void store() {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int step = 8; step > 0; step /= 2) sum[i] += __shfl_xor_sync(~0u, sum[i], step);
      const float inverse = 1.0f / sum[i];
      const uint2 halves{pack_f16x2(o[i][0] * inverse, o[i][1] * inverse),
                         pack_f16x2(o[i][2] * inverse, o[i][3] * inverse)};
      *reinterpret_cast<uint2*>(tile.out + row(i) * p.out.row + lane * 4) = halves;
    }
  }
};

}  // namespace ladder

template <const Sm80Config& cfg>
inline void attention_sm80(const Sm80Params& p) {
  extern __shared__ __align__(16) char shared[];
  ladder::TiledAttention<cfg>(p, reinterpret_cast<float*>(shared)).run();
}

}  // namespace rapt
