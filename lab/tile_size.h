// The size of a CTA's tile, from the fields of a configuration of any family.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/config_table.h"

namespace rapt::lab {

// The query rows of a tile. attention_sm90 has 64 rows for each warpgroup and no field block_m. 0 if the configuration
// has neither field.
inline int64_t rows_of_a_tile(const KernelConfig& config) {
  return config.number("block_m", 64 * config.number("warpgroups"));
}
// The keys that a CTA processes in one step of its loop. 0 if the configuration has no block_n.
inline int64_t keys_of_a_step(const KernelConfig& config) {
  return config.number("block_n") * config.number("warps_n", 1);
}

}  // namespace rapt::lab
