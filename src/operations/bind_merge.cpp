// Converts the tensors of rapt_merge to addresses and strides.
#include "operations/bind_merge.h"

#include "arguments/tensor_rules.h"
#include "base/error.h"

namespace rapt {
namespace {

// Converts `out`: [batch, heads, rows, channels] or packed [rows, heads, channels].
TensorRef out_ref(const rapt_tensor& t) {
  const auto s = strides_of(t);
  const auto dtype = static_cast<DType>(t.dtype);
  return t.rank == 4 ? TensorRef{t.data, dtype, s[0], s[1], s[2], s[3]} : TensorRef{t.data, dtype, 0, s[1], s[0], s[2]};
}

// Converts `lse`: [batch, heads, rows] or packed [heads, rows].
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
  if (args.count > MergeParams::max_parts)
    unsupported("count = ", args.count, ": a GPU merges at most ", MergeParams::max_parts,
                " parts in one call; merge them in groups, with f32 out and lse");
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

}  // namespace rapt
