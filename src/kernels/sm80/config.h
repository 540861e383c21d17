// Sm80Config: the compile-time choices of attention_sm80. Chosen by attention_sm80.cpp, read by the kernel.
#pragma once

#include "../shared/variant.h"

namespace rapt {

struct Sm80Config : AttentionVariant {
  // A CTA has warps_m x warps_n warps. It owns block_m query rows, split among warps_m. In one iteration of the
  // mainloop it takes block_n * warps_n keys, split among warps_n (split-KV inside the CTA). stages: the number of
  // buffers for K and V.
  int block_m = 0, block_n = 0, warps_m = 0, warps_n = 1, stages = 2;
  bool q_in_registers = false;  // false: every iteration loads Q fragments from shared memory
  int min_blocks = 1;           // CTAs per SM in __launch_bounds__; limits registers

  // attention_decode: the rows of all query heads of a KV head share a tile. Row r of such a group of n heads is query
  // r / n of head `first + r % n`. All counts of rows are counts of such rows.
  bool packs_heads = false;
  // attention_decode with `invariant`: the keys of a sequence are divided into parts of this many keys, from key 0 on.
  // A multiple of cta_block_n(). 0: not `invariant`, so the number of CTAs determines the parts.
  int part_keys = 0;

  // One FMA inside exp2 applies the scale: exp2(s * c - m * c), c = scale * log2(e). This is possible only if the scale
  // is positive, and nothing but masks follows it. With a soft cap, the FMA multiplies by the cap instead.
  bool scale_in_exp2 = true;
  bool pairs = false;            // bias and mask are loaded in pairs of keys (ScoreAccess)
  bool octets = false;           // they are loaded in groups of eight keys; K and V are permuted in shared memory
  bool far_positions = false;    // with ALiBi: distances can exceed 2^24
  bool paged = false;            // K and V are in pages (PageTable)
  bool causal_or_local = false;  // causal mask or window: the visible keys differ by row

  // Programmatic dependent launch (sm_90 and newer). The kernel starts while the previous kernel on the stream ends,
  // and waits for its end with griddepcontrol.
  bool programmatic = false;

  bool f16_accumulate = false;  // acc=f16: mma accumulates a block's products in f16
  bool single_tf32 = false;     // acc=tf32: f32 operands of products are rounded to TF32; false: sums of two TF32 terms

  // FP8 tensors. Descales of a whole tensor or head need no code of their own. These fields describe the other kinds of
  // descales.
  bool fp8_qk = false;              // QK^T by FP8 mma; false: FP8 is converted to 16 bits first
  bool fp8_pv = false;              // the same for PV
  bool q_row_descales = false;      // q's descales differ by row: token, block64, block128
  int k_descale_block = 0;          // keys that share a descale of k (1, 64, 128); 0: all
  int v_descale_block = 0;          // the same for v
  bool v_channel_descales = false;  // v's descales differ by channel
  int promotion_interval = 0;       // two-level accumulation of PV: keys per inner sum; 0: off

  // Head dims above 256 (wide_attention.cuh); 0: not used. K of a block arrives in pieces of k_piece channels, then V
  // in pieces of v_piece keys. `stages` counts buffers of one piece. A CTA computes at most v_slice columns of the
  // output. The warps_n warps share the scores of a block: each computes those of block_n keys, then all keys for its
  // columns.
  int k_piece = 0, v_piece = 0, v_slice = 0;
  // V is the first head_dim_v channels of K. Then K of a block is one piece, from which V is also read.
  bool v_in_k = false;

  constexpr bool wide() const { return k_piece > 0; }
  constexpr int threads() const { return 32 * warps_m * warps_n; }
  constexpr int cta_block_n() const { return block_n * warps_n; }
  // Returns whether a key can be visible to one row of a tile and masked for another.
  constexpr bool masks_differ_by_row() const { return causal_or_local || mask || bias != DType::none; }

  constexpr bool operator==(const Sm80Config&) const = default;
};

}  // namespace rapt
