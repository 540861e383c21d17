// Common code of the ladder's tensor-core rungs: plain 16-bit tiles in shared memory (no padding, no swizzle: eight
// rows of an ldmatrix use the same banks), and the two products of attention on mma.sync fragments. A warp owns 16
// query rows; head_dim is 64. Included by lab/ladder/*.cuh only.
#pragma once

#include "ladder_tile.cuh"
#include "ptx/copy.cuh"
#include "ptx/mma.cuh"

namespace rapt::ladder {

constexpr int dim = 64, tile_pitch = dim * 2 + 16;  // bytes between rows

inline unsigned tile_address(unsigned tile, int row, int column) {
  return tile + static_cast<unsigned>(row * tile_pitch + column * 2);
}

// Starts the copies of a tile of `rows` rows, by `threads` threads.
template <int rows, int threads>
inline void load_async(unsigned to, const unsigned short* from, index_t row_stride,
                       int thread = static_cast<int>(threadIdx.x)) {
  for_each_chunk<rows, threads>(
      from, row_stride,
      [&](int row, int column, const unsigned short* at) { cp_async_16(tile_address(to, row, column), at, true); },
      thread);
}

template <const Sm80Config& cfg>
struct MmaTiles {
  static constexpr int rows = cfg.block_m, keys = cfg.block_n, threads = cfg.threads(), n_tiles = keys / 8;
  static constexpr int q_bytes = rows * tile_pitch, kv_bytes = keys * tile_pitch;
  static_assert(cfg.head_dim == dim && cfg.head_dim_v == dim && cfg.warps_n == 1);
  static_assert(rows % 16 == 0 && rows <= 16 * cfg.warps_m, "the first warps own 16 rows each; others own none");
  static_assert(cfg.stages * 2 * kv_bytes <= smem_bytes(cfg), "K and V with their padding take the place of Q");

  const AttentionParams& p;
  RowTile tile;
  const unsigned q_tile, kv_tiles;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;

  MmaTiles(const Sm80Params& params, const void* q, const void* kv)
      : p(params.attention), tile(params, cfg), q_tile(shared_address(q)), kv_tiles(shared_address(kv)) {}

  unsigned k_tile(int step) const { return kv_tiles + static_cast<unsigned>(step % cfg.stages * 2 * kv_bytes); }
  unsigned v_tile(int step) const { return k_tile(step) + kv_bytes; }

  // Address of this lane's row for the fragment of 16 rows x 16 columns at (row, column). Used for Q and for V (which
  // is transposed while it is loaded).
  unsigned fragment(unsigned at, int row, int column) const {
    return tile_address(at, row + lane % 16, column + lane / 16 * 8);
  }

  void read_q(unsigned (&q)[dim / 16][4]) const {
#pragma unroll
    for (int d = 0; d < dim; d += 16) ldmatrix_x4(q[d / 16], fragment(q_tile, warp * 16, d));
  }

  // s = q k^T, raw products: s[n] holds keys 8 n .. 8 n + 7.
  void scores(float (&s)[n_tiles][4], const unsigned (&q)[dim / 16][4], unsigned k) const {
#pragma unroll
    for (int n = 0; n < n_tiles; n += 2) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] = s[n + 1][i] = 0.0f;
#pragma unroll
      for (int d = 0; d < dim; d += 16) {
        unsigned b[4];
        ldmatrix_x4(b, tile_address(k, n * 8 + lane % 8 + lane / 16 * 8, d + lane / 8 % 2 * 8));
        mma_m16n8k16<DType::f16>(s[n], q[d / 16], b[0], b[1]);
        mma_m16n8k16<DType::f16>(s[n + 1], q[d / 16], b[2], b[3]);
      }
    }
  }

  // o += weights * v for 16 keys from `key` on.
  void accumulate(float (&o)[dim / 8][4], const unsigned (&weights)[4], unsigned v, int key) const {
#pragma unroll
    for (int d = 0; d < dim; d += 16) {
      unsigned b[4];
      ldmatrix_x4_trans(b, fragment(v, key, d));
      mma_m16n8k16<DType::f16>(o[d / 8], weights, b[0], b[1]);
      mma_m16n8k16<DType::f16>(o[d / 8 + 1], weights, b[2], b[3]);
    }
  }

  // Stores this lane's parts of rows lane / 4 and lane / 4 + 8 of the warp, divided by the sums of these rows.
  void store(const float (&o)[dim / 8][4], const float (&sum)[2]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float inverse = 1.0f / sum[half];
      unsigned short* const row = tile.out + (warp * 16 + lane / 4 + 8 * half) * p.out.row;
#pragma unroll
      for (int n = 0; n < dim / 8; ++n)
        *reinterpret_cast<unsigned*>(row + n * 8 + lane % 4 * 2) =
            pack_f16x2(o[n][2 * half] * inverse, o[n][2 * half + 1] * inverse);
    }
  }
};

}  // namespace rapt::ladder
