// Rules that GPU families share (config_rules.h).
#include "kernels/config_rules.h"

namespace rapt {

void require_range(const char* field, int value, int least, int most) {
  if (value < least || value > most) bad_config(field, value, "must be ", least, " to ", most);
}

void require_multiple(const char* field, int value, int of) {
  if (value % of != 0) bad_config(field, value, "must be a multiple of ", of);
}

void require_fits(const ConfigChange& change, int64_t smem_bytes) {
  const AttentionConfig& c = change.changed;
  const Device& device = change.device;
  constexpr int most_threads = 1024;  // of a block, on every GPU
  if (c.threads() > most_threads)
    invalid("config: warps_m = ", c.warps_m, ", warps_k = ", c.warps_k, ": a block of ", c.threads(),
            " threads; at most ", most_threads);
  if (smem_bytes > device.smem_per_block)
    invalid("config: block_m = ", c.block_m, ", block_n = ", c.block_n, ", warps_k = ", c.warps_k,
            ", stages = ", c.stages, ": take ", smem_bytes, " bytes of shared memory; a block of ", device.name,
            " has ", device.smem_per_block);
  if (c.min_blocks * c.threads() > device.threads_per_sm)
    bad_config("min_blocks", c.min_blocks, "blocks of ", c.threads(), " threads; a multiprocessor of ", device.name,
               " has ", device.threads_per_sm, " threads");
}

}  // namespace rapt
