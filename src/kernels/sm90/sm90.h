// The parameter block and the shared memory of attention_sm90. Its host and device halves compile this file. It
// includes only files of shared/ and config.h.
#pragma once

#include "../shared/params.h"
#include "../shared/tensor_map.h"
#include "../shared/tile_scheduler.h"
#include "config.h"

namespace rapt {

// What a tile needs to know of its sequence.
struct TileSequence {
  Band band;
  int first_q = 0, seqlen_q = 0, rows_q = 0;  // as in Sequence
  int offset = 0;                             // as in Sequence, but at most 2^30
  bool foreign_tail = false;  // rows of K and V after the sequence's keys may hold values other than zero

  static constexpr TileSequence of(const AttentionParams& p, index_t batch) {
    const Sequence s = sequence_of(p, batch);
    return {Band::of(p.position_mask, s.offset, s.seqlen_k),
            static_cast<int>(s.first_q),
            static_cast<int>(s.seqlen_q),
            static_cast<int>(s.rows_q),
            static_cast<int>(clamped(s.offset, -(1 << 30), 1 << 30)),
            p.cu_seqlens_k.present() || p.seqused_k.present()};
  }
};

// If the problem has no lists, all its sequences are equal. The host then computes their values, because this takes
// more than a hundred dependent instructions, and a CTA would compute them before its first load.
struct TileSequences {
  bool equal = false;
  TileSequence value;  // if equal

  static constexpr TileSequences of(const AttentionParams& p) {
    const bool lists = p.cu_seqlens_q.present() || p.cu_seqlens_k.present() || p.seqused_q.present() ||
                       p.seqused_k.present() || p.q_starts.present() || p.k_starts.present();
    if (lists) return {};
    return {true, TileSequence::of(p, 0)};
  }
  constexpr TileSequence at(const AttentionParams& p, index_t batch) const {
    return equal ? value : TileSequence::of(p, batch);
  }
};

struct Sm90Params {
  TensorMap q, k, v;
  AttentionParams attention;
  TileScheduler scheduler;
  unsigned items = 0;            // number of tiles of query rows in the whole problem
  unsigned* counters = nullptr;  // two: number of tiles taken, and of CTAs that have ended
  TileSequences sequences;
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
