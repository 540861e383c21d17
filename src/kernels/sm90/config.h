// Sm90Config: the compile-time choices of attention_sm90. Chosen by attention_sm90.cpp, read by the kernel.
#pragma once

#include "../shared/variant.h"

namespace rapt {

struct Sm90Config : AttentionVariant {
  int warpgroups = 2;            // consumer warpgroups, 64 query rows each; one more warpgroup loads
  int block_n = 128;             // keys per block
  int q_stages = 2;              // buffers of query tiles in shared memory
  int kv_stages = 4;             // buffers in shared memory, each for a block of K or of V
  bool ping_pong = false;        // warpgroups take turns: one issues products while the others compute softmax
  bool causal_or_local = false;  // rows may see different keys
  int packed_heads = 1;          // query heads of a GQA group whose rows share a tile; 1: each head has its own tiles
  bool pairs = false;            // each thread loads bias and mask in pairs of keys (ScoreAccess), or from boxes
  bool boxes = false;            // TMA loads boxes of bias and mask, together with K
  bool bias_row = false;         // with boxes: all queries of a sequence have the same row of the bias
  bool mask_row = false;         // the same for the mask
  int page_rows = 0;             // paged K and V: keys of a page that TMA copies at once; 0: K and V are not paged
  int score_stages = 2;          // with boxes: buffers in shared memory, each for the bias and mask of a block
  bool programmatic = true;      // the kernel can start before the previous kernel ends, and then waits for that end

  // FP8 tensors. Descales of a whole tensor or head need no field of their own.
  bool q_row_descales = false;      // q's descales differ by row: token, block64, block128
  int k_descale_block = 0;          // keys that share a descale of k (1, 64, 128); 0: all
  bool v_channel_descales = false;  // v's descales differ by channel
  // Two-level accumulation of FP8 PV: after this number of keys, the sum moves to an f32 sum in the workspace. A
  // multiple of block_n; 0: never.
  int promotion_interval = 0;

  // The types that the products with K and with V read. wgmma multiplies FP8 by FP8 or 16 bits by 16 bits, so some FP8
  // tensors are first converted (convert_kv.cuh).
  constexpr DType key_type() const { return is_tensor_core_fp8(k) && !is_tensor_core_fp8(q) ? q : k; }
  constexpr DType value_type() const { return is_tensor_core_fp8(v) && p_terms == 0 ? DType::f16 : v; }
  constexpr DType weight_type() const { return p_terms > 0 ? DType::e4m3 : value_type(); }
  constexpr bool converts_k() const { return key_type() != k; }
  constexpr bool converts_v() const { return is_tensor_core_fp8(v); }
  constexpr bool converts() const { return converts_k() || converts_v(); }
  // Products with FP8 V need its keys contiguous. Then V in shared memory has a row for each channel, not for each key.
  constexpr bool transposes_v() const { return p_terms > 0; }

  constexpr int block_m() const { return 64 * warpgroups; }
  constexpr int threads() const { return 128 * (warpgroups + 1); }
  // Registers of a thread: at the start, then after the warpgroups have exchanged registers (setmaxnreg).
  constexpr int start_registers() const { return 65536 / threads() / 8 * 8; }
  constexpr int producer_registers() const { return start_registers() > 128 ? 40 : 32; }
  constexpr int consumer_registers() const {
    const int all = start_registers() * (warpgroups + 1) - producer_registers(), most = all / warpgroups / 8 * 8;
    return most < 240 ? most : 240;
  }
  // Whether blocks that the mask hides from all rows of a warpgroup are skipped.
  constexpr bool skips_hidden_blocks() const { return boxes && mask; }
  constexpr bool operator==(const Sm90Config&) const = default;
};

}  // namespace rapt
