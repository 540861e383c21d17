// Common code of the ladder's rungs: the position of a thread block, and plain tiles in shared memory. Included by
// lab/ladder/*.cuh only. Requires the ladder's problems: dense f16 tensors with unit last strides and 16-byte aligned
// rows, head_dim 64, no mask, lengths that are multiples of the tiles.
#pragma once

#include "device/numeric.cuh"
#include "sm80/sm80.h"

namespace rapt::ladder {

constexpr float log2_e = 1.4426950408889634f;
constexpr float minus_infinity = detail::float_of(0xff800000u);

// block_m query rows of one head, assigned to blocks as in the shipped kernel.
struct RowTile {
  const unsigned short *q, *k, *v;  // first rows
  unsigned short* out;
  int steps;  // number of steps; each has block_n keys

  RowTile(const Sm80Params& params, const Sm80Config& cfg, unsigned block = blockIdx.x) {
    const AttentionParams& p = params.attention;
    const TileScheduler::WorkTile work = params.scheduler.work_tile(block);
    const index_t batch = work.batch, head = work.head, row = static_cast<index_t>(work.m_block) * cfg.block_m;
    q = static_cast<const unsigned short*>(p.q.data) + p.q.index(batch, head, row);
    k = static_cast<const unsigned short*>(p.k.data) + p.k.index(batch, head / p.group, 0);
    v = static_cast<const unsigned short*>(p.v.data) + p.v.index(batch, head / p.group, 0);
    out = static_cast<unsigned short*>(p.out.data) + p.out.index(batch, head, row);
    steps = static_cast<int>(p.seqlen_k / cfg.block_n);
  }
};

// Calls copy(row, first column, address) for each 16 bytes of a tile of `rows` x 64 elements. `threads` threads share
// this work; `thread` is the number of this thread. Neighbouring threads get neighbouring addresses.
template <int rows, int threads, class Copy>
inline void for_each_chunk(const unsigned short* from, index_t row_stride, Copy copy,
                           int thread = static_cast<int>(threadIdx.x)) {
  static_assert(rows * 8 % threads == 0);
#pragma unroll
  for (int i = 0; i < rows * 8; i += threads) {
    const int row = (i + thread) / 8, column = (i + thread) % 8 * 8;
    copy(row, column, from + row * row_stride + column);
  }
}

}  // namespace rapt::ladder
