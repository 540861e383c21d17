// The parameter block and the shared memory of attention_sm90. Its host and device halves compile this file. It
// includes only files of shared/ and config.h.
#pragma once

#include "../shared/params.h"
#include "../shared/tensor_map.h"
#include "../shared/tile_scheduler.h"
#include "config.h"

namespace rapt {

struct Sm90Params {
  TensorMap q, k, v;
  AttentionParams attention;
  TileScheduler scheduler;
  unsigned items = 0;            // number of tiles of query rows in the whole problem
  unsigned* counters = nullptr;  // two, for a dynamic schedule: number of tiles taken, and of CTAs that have ended
};

// The layout of a CTA's shared memory. Members ..._at are byte offsets from its start. Tensors lie in columns of 64
// elements (128 bytes, the width of a swizzle): [column][row][64]. If the head dim is not a multiple of 64, the last
// column ends in zeros.
struct Sm90Layout {
  int dim, dim_v;          // head dims rounded up to multiples of 16, because of a wgmma's depth (dim) and n (dim_v)
  int columns, columns_v;  // number of columns of 64 elements
  int q_bytes, kv_bytes;   // bytes of one buffer. q: for a tile of Q, later its output. kv: for a block of K or of V
  int q_at = 0, kv_at, barriers_at, tiles_at, bytes;

  static constexpr int redo_capacity = 256;  // tiles that can be computed again in one round (producer.cuh)

  constexpr explicit Sm90Layout(const Sm90Config& c)
      : dim((c.head_dim + 15) / 16 * 16),
        dim_v((c.head_dim_v + 15) / 16 * 16),
        columns((c.head_dim + 63) / 64),
        columns_v((c.head_dim_v + 63) / 64),
        q_bytes((columns > columns_v ? columns : columns_v) * c.block_m() * 128),
        kv_bytes((columns > columns_v ? columns : columns_v) * c.block_n * 128),
        kv_at(c.q_stages * q_bytes),
        barriers_at(kv_at + c.kv_stages * kv_bytes),
        tiles_at(barriers_at + 8 * barriers(c)),
        bytes(tiles_at + 2 * 64 + 4 * (1 + redo_capacity)) {}

  // Number of barriers; SharedState (shared_state.cuh) names them.
  static constexpr int barriers(const Sm90Config& c) { return 2 * c.q_stages + 2 * c.kv_stages + 5; }
};

}  // namespace rapt
