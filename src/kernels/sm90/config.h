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
