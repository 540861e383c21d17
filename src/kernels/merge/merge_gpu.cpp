// merge, host code: translation unit and launch. The kernel is merge.cuh.
#include "kernels/merge/merge_gpu.h"

#include <algorithm>

#include "kernels/config_table.h"

namespace rapt {
namespace {
constexpr ConfigField config_fields[] = {
    config_field<MergeConfig, &MergeConfig::out>("out"),
    config_field<MergeConfig, &MergeConfig::warps>("warps"),
};
constexpr ConfigType config_table = config_type<MergeConfig>("MergeConfig", config_fields);
}  // namespace

KernelUnit merge_unit(const MergeConfig& c) {
  return {emit_unit("merge/merge.cuh", "merge_states", config_table, &c, "MergeParams", ""), c.threads(),
          static_cast<size_t>(merge_smem_bytes(c))};
}

LaunchSpec merge_launch(const MergeParams& params, const MergeConfig& config) {
  LaunchSpec spec(params);
  const index_t rows = params.batch * params.heads * params.rows;
  // One warp per row; the kernel is a grid-stride loop.
  spec.grid_x = static_cast<unsigned>(std::min((rows + config.warps - 1) / config.warps, max_grid_x));
  return spec;
}

}  // namespace rapt
