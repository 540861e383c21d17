// Sm90Config: the compile-time choices of attention_sm90. Chosen by attention_sm90.cpp, read by the kernel.
#pragma once

#include "../shared/variant.h"

namespace rapt {

struct Sm90Config : AttentionVariant {
  int warpgroups = 2;            // that compute, 64 query rows each; one more loads
  int block_n = 128;             // keys of a n_block
  int stages = 2;                // n_blocks of K and of V that are in shared memory at once
  bool ping_pong = false;        // warpgroups take turns: one multiplies while another computes its softmax
  bool causal_or_local = false;  // rows may see different keys
  bool dynamic = false;          // a block takes tile after tile from a counter; else one tile

  constexpr int block_m() const { return 64 * warpgroups; }
  constexpr int threads() const { return 128 * (warpgroups + 1); }
  constexpr bool operator==(const Sm90Config&) const = default;
};

}  // namespace rapt
