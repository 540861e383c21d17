// merge, host half: its text and its launch. What runs is merge.cuh.
#include "kernels/merge/merge_gpu.h"

#include <algorithm>

#include "base/error.h"

namespace rapt {

KernelUnit merge_unit(DType out) {
  constexpr int threads = 32 * MergeParams::warps;
  return {concat("#include \"merge/merge.cuh\"\nextern \"C\" __global__ void __launch_bounds__(", threads,
                 ") rapt_kernel(const __grid_constant__ rapt::MergeParams p) { rapt::merge_states<rapt::DType::",
                 name_of(out), ">(p); }\n"),
          threads, MergeParams::shared_doubles * sizeof(double)};
}

LaunchSpec merge_launch(const MergeParams& params) {
  LaunchSpec spec(params);
  const index_t rows = params.batch * params.heads * params.rows;
  constexpr index_t warps = MergeParams::warps;  // a row each; the kernel strides over what is left
  spec.grid_x = static_cast<unsigned>(std::min((rows + warps - 1) / warps, most_blocks));
  return spec;
}

}  // namespace rapt
