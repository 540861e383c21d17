// ScalarConfig: the compile-time choices of attention_scalar. Chosen by attention_scalar.cpp, read by the kernel.
#pragma once

#include "../shared/variant.h"

namespace rapt {

struct ScalarConfig : AttentionVariant {
  int block_m = 0, block_n = 0;  // query rows of a thread block, keys of a tile
  int warps_m = 0;               // warps of a block, to which its rows are dealt
  int min_blocks = 1;            // thread blocks that must fit on an SM: bounds the registers

  constexpr int threads() const { return 32 * warps_m; }

  constexpr bool operator==(const ScalarConfig&) const = default;
};

}  // namespace rapt
