// The kernel parameter and the shared memory layout of attention_sm80. Compiled by its host and device code; includes
// nothing outside shared/.
#pragma once

#include "../shared/params.h"
#include "../shared/tile_scheduler.h"
#include "config.h"

namespace rapt {

struct Sm80Params {
  AttentionParams attention;
  TileScheduler scheduler;
};

constexpr int round_up(int n, int multiple) { return (n + multiple - 1) / multiple * multiple; }

// Head dims above 256: what a CTA computes, and its shared memory. A row tile has `slices` CTAs. Each computes the
// scores of all keys, and `columns` columns of the output (the last slice can have fewer).
struct Sm80WideLayout {
  int slices = 1, columns = 0;  // columns: rounded up, so that each of the warps_n warps has whole mma fragments
  int k_pieces = 0, v_pieces = 0;
  int piece_bytes = 0;  // of a buffer, which holds one piece of K or V

  constexpr Sm80WideLayout() = default;
  constexpr explicit Sm80WideLayout(const Sm80Config& c) {
    const int wanted = (c.head_dim_v + c.v_slice - 1) / c.v_slice;
    columns = round_up((c.head_dim_v + wanted - 1) / wanted, 16 * c.warps_n);
    slices = (c.head_dim_v + columns - 1) / columns;
    k_pieces = (c.head_dim + c.k_piece - 1) / c.k_piece;
    v_pieces = c.v_in_k ? 0 : c.cta_block_n() / c.v_piece;
    const int k_bytes = 2 * c.cta_block_n() * c.k_piece, v_bytes = c.v_in_k ? 0 : 2 * c.v_piece * columns;
    piece_bytes = k_bytes > v_bytes ? k_bytes : v_bytes;
  }
};
// The number of CTAs of a row tile.
constexpr int slices_of(const Sm80Config& c) { return c.wide() ? Sm80WideLayout(c).slices : 1; }

// The layout of Q, K and V in shared memory. Elements have the same types as in the tensors, except for Q: FP8 Q is
// converted to 16 bits in shared memory unless QK^T uses FP8 mma. Head dims are rounded up to one fragment load: 32
// bytes of a row of Q or K, or 16 channels for TF32 products; 16 channels of V, or 32 if FP8 V is converted to 16 bits.
struct Sm80Layout {
  bool k_codes, v_codes, widens_q, widens_k, widens_v;
  bool tf32_qk, tf32_pv;     // TF32 products (tf32.cuh): for f32, and if one of q and k is f16 and the other bf16
  bool rescales_q;           // bf16 Q becomes f16, each row times a power of two, because FP8 K converts fastest to f16
  int dim, dim_v;            // elements of a row, rounded up as above
  int q_row, k_row, v_row;   // bytes of a row
  DType qk_dtype, pv_dtype;  // mma operand types; FP8 P is E4M3

  constexpr explicit Sm80Layout(const Sm80Config& c)
      : k_codes(is_tensor_core_fp8(c.k)),
        v_codes(is_tensor_core_fp8(c.v)),
        widens_q(is_tensor_core_fp8(c.q) && !c.fp8_qk),
        widens_k(k_codes && !c.fp8_qk),
        widens_v(v_codes && !c.fp8_pv),
        tf32_qk(c.q == DType::f32 || c.k == DType::f32 || (is_16bit(c.q) && is_16bit(c.k) && c.q != c.k)),
        tf32_pv(c.v == DType::f32),
        rescales_q(widens_k && c.q == DType::bf16),
        dim(round_up(c.head_dim, k_codes ? 32 : 16)),
        dim_v(c.wide() ? Sm80WideLayout(c).columns : round_up(c.head_dim_v, widens_v ? 32 : 16)),
        q_row(c.fp8_qk            ? dim
              : c.q == DType::f32 ? 4 * dim
                                  : 2 * dim),
        k_row(bytes_of(c.k) * dim),
        v_row(bytes_of(c.v) * dim_v),
        qk_dtype(c.fp8_qk                  ? c.q
                 : k_codes                 ? DType::f16
                 : is_tensor_core_fp8(c.q) ? c.k
                                           : c.q),
        pv_dtype(widens_v ? DType::f16 : c.v) {}

  // TF32 operands of `type` are a sum of this many terms.
  static constexpr int terms(const Sm80Config& c, DType type) { return type == DType::f32 && !c.single_tf32 ? 2 : 1; }
  // The number of neighbouring channels of V that a lane has (ChannelPair). They belong to different n-tiles. TF32: if
  // O has many registers, lanes load less at a time.
  constexpr int lane_channels() const { return tf32_pv && dim_v % 32 == 0 && dim_v <= 128 ? 4 : 2; }
  // The number of k8 steps of PV that tensor cores sum, for TF32.
  constexpr int v_steps() const { return dim_v <= 128 ? 2 : 1; }
};

// Returns whether scale_log2 differs from row to row, because of row descales of Q or rescaled rows of Q.
constexpr bool has_row_scales(const Sm80Config& c) {
  return c.scale_in_exp2 && (c.q_row_descales || Sm80Layout(c).rescales_q);
}

// Returns whether the grid is (m blocks, heads, batch). Else it has one dimension, and TileScheduler numbers the tiles.
constexpr bool has_3d_grid(const Sm80Config& c) { return c.warps_n > 1 && !c.wide(); }

// Returns whether the epilogue writes f32 rows to shared memory instead of 16-bit rows. It does so to combine warps,
// and for f32 output.
constexpr bool has_f32_epilogue(const Sm80Config& c) { return c.warps_n > 1 || !is_16bit(c.out); }
constexpr int f32_epilogue_pitch(const Sm80Config& c) { return round_up(c.head_dim_v, 32) + 8; }  // floats per row

// Head dims above 256: Q and the buffers of pieces begin at 0. The output takes their place at the end.
constexpr int wide_weights_at(const Sm80Config& c) {
  return c.block_m * Sm80Layout(c).q_row + c.stages * Sm80WideLayout(c).piece_bytes;
}
// For each of the warps_n warps and each row: the maximum of a block's scores, in the end the sum of the weights.
constexpr int wide_row_values_at(const Sm80Config& c) {
  const int weights_end = wide_weights_at(c) + 2 * c.block_m * c.cta_block_n();
  const int out = 2 * c.block_m * Sm80WideLayout(c).columns;
  return weights_end > out ? weights_end : out;
}

// attention_decode: the bytes of a row of the output that waits in shared memory, with three other values behind it.
// The padding keeps stores of neighbouring rows in different banks.
constexpr int wide_staged_row_bytes(const Sm80Config& c) { return 4 * (Sm80WideLayout(c).columns + 8); }

// PagedRows. Entries of the block table are copied this many blocks ahead. It is the smallest number with which the
// offsets of a block's rows are ready when the block is loaded.
constexpr int page_look_ahead(const Sm80Config& c) {
  if (!c.wide()) return c.stages;
  const Sm80WideLayout w(c);
  const int pieces = w.k_pieces + w.v_pieces;
  return (c.stages + pieces - 1) / pieces;
}
// The number of blocks whose entries and offsets are in shared memory: 20 bytes for each key. They are behind
// everything else.
constexpr int page_lists(const Sm80Config& c) {
  const int ahead = page_look_ahead(c);
  return c.wide() && ahead < 2 ? 2 : ahead;
}
constexpr int paged_rows_at(const Sm80Config& c) {
  if (c.wide()) return wide_row_values_at(c) + round_up(4 * c.block_m * c.warps_n, 16);
  const Sm80Layout l(c);
  return c.block_m * (l.q_row + (l.rescales_q ? 4 : 0)) + c.stages * c.cta_block_n() * (l.k_row + l.v_row);
}
constexpr int paged_rows_bytes(const Sm80Config& c) { return c.paged ? 20 * c.cta_block_n() : 0; }

// Bytes of dynamic shared memory, for Q and `stages` buffers of K and V. The epilogue reuses the same bytes.
constexpr int smem_bytes(const Sm80Config& c) {
  const Sm80Layout l(c);
  const int tiles = paged_rows_at(c) + page_lists(c) * paged_rows_bytes(c);
  if (c.wide()) {
    const int staged = c.packs_heads ? c.block_m * wide_staged_row_bytes(c) : 0;
    return tiles > staged ? tiles : staged;
  }
  const int out = has_f32_epilogue(c)
                      ? 4 * c.block_m * (c.warps_n * (f32_epilogue_pitch(c) + 2) + (has_row_scales(c) ? 1 : 0))
                      : 2 * c.block_m * l.dim_v;
  return tiles > out ? tiles : out;
}

}  // namespace rapt
