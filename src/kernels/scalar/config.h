// ScalarConfig: the compile-time choices of attention_scalar. Chosen by attention_scalar.cpp, read by the kernel.
#pragma once

#include "../shared/variant.h"

namespace rapt {

struct ScalarConfig : AttentionVariant {
  int block_m = 0, block_n = 0;  // query rows of a CTA, keys of a tile
  int warps_m = 0;               // warps of a CTA; its rows are split among them
  int min_blocks = 1;            // CTAs per SM in __launch_bounds__; limits registers

  constexpr int threads() const { return 32 * warps_m; }

  constexpr bool operator==(const ScalarConfig&) const = default;
};

}  // namespace rapt
