// merge, host half: states as raw addresses, one launch. What runs is merge.cuh.
#include "kernels/merge/merge_gpu.h"

#include <algorithm>

#include "arguments/tensor_rules.h"
#include "base/error.h"
#include "runtime/context.h"
#include "runtime/gpu.h"

namespace rapt {
namespace {

// Of out [batch, heads, rows, channels] or packed [rows, heads, channels].
TensorRef out_ref(const rapt_tensor& t) {
  const auto s = strides_of(t);
  const auto dtype = static_cast<DType>(t.dtype);
  return t.rank == 4 ? TensorRef{t.data, dtype, s[0], s[1], s[2], s[3]} : TensorRef{t.data, dtype, 0, s[1], s[0], s[2]};
}

// Of lse [batch, heads, rows] or packed [heads, rows].
TensorRef lse_ref(const rapt_tensor& t) {
  const auto s = strides_of(t);
  return t.rank == 3 ? TensorRef{t.data, DType::f32, s[0], s[1], s[2], 0}
                     : TensorRef{t.data, DType::f32, 0, s[0], s[1], 0};
}

MergePart part_of(const rapt_tensor& out_tensor, const rapt_tensor& lse_tensor) {
  const TensorRef out = out_ref(out_tensor), lse = lse_ref(lse_tensor);
  return {static_cast<const float*>(out.data),
          static_cast<const float*>(lse.data),
          out.batch,
          out.head,
          out.row,
          out.column,
          lse.batch,
          lse.head,
          lse.row};
}

}  // namespace

MergeParams merge_params(const rapt_merge_args& args) {
  if (args.count > MergeParams::most_parts)
    unsupported("count = ", args.count, ": a GPU merges at most ", MergeParams::most_parts,
                " parts in a call; merge groups of them into f32 out and lse first");
  MergeParams p;
  p.out = out_ref(*args.out);
  if (args.lse != nullptr) p.lse = lse_ref(*args.lse);
  if (args.sinks != nullptr) {
    p.sinks = static_cast<const float*>(args.sinks->data);
    p.sinks_head = strides_of(*args.sinks)[0];
  }
  const int64_t* shape = args.out->shape;
  const bool dense = args.out->rank == 4;
  p.batch = dense ? shape[0] : 1;
  p.heads = shape[1];
  p.rows = dense ? shape[2] : shape[0];
  p.channels = shape[args.out->rank - 1];
  p.count = static_cast<int>(args.count);
  for (int i = 0; i < p.count; ++i) p.parts[i] = part_of(*args.outs[i], *args.lses[i]);
  return p;
}

KernelUnit merge_unit(DType out) {
  constexpr int threads = 32 * MergeParams::warps;
  return {concat("#include \"merge/merge.cuh\"\nextern \"C\" __global__ void __launch_bounds__(", threads,
                 ") rapt_kernel(const __grid_constant__ rapt::MergeParams p) { rapt::merge_states<rapt::DType::",
                 name_of(out), ">(p); }\n"),
          threads, MergeParams::shared_doubles * sizeof(double)};
}

void merge_on_gpu(Context& context, const rapt_merge_args& args, void* stream) {
  const MergeParams params = merge_params(args);
  const index_t rows = params.batch * params.heads * params.rows;
  if (rows == 0) return;
  const int index = args.out->device.index;
  const cuda::ContextScope scope(index, stream);
  const Device device = context.gpu().device(index);
  if (device.sm < 80) unsupported("out.device: ", device.name, " is sm_", device.sm, ", must be sm_80 or newer");
  const KernelUnit unit = merge_unit(params.out.dtype);
  if (!context.gpu().has_kernel(device, unit) && cuda::is_capturing(stream))
    invalid("stream = ", stream,
            ": is being captured, and the kernel of this merge is not loaded yet; merge once into ",
            name_of(params.out.dtype), " before the capture");
  const LoadedKernel& loaded = context.gpu().kernel(device, unit, "rapt_merge");
  constexpr index_t most_blocks = 0x7fffffff;  // grid.x of every GPU; the kernel strides over the rest
  cuda::Kernel::Launch launch;
  launch.grid_x = static_cast<unsigned>(std::min((rows - 1) / MergeParams::warps + 1, most_blocks));
  launch.threads = static_cast<unsigned>(loaded.unit.threads);
  launch.smem_bytes = loaded.unit.smem_bytes;
  launch.stream = stream;
  loaded.kernel->launch(launch, &params);
}

}  // namespace rapt
