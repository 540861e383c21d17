// rapt_merge: merges partial states of the same queries over disjoint keys. Checks the call, and computes it on the
// CPU. Called by c_api.cpp. Parts are added in the given order, in double, so every run gives the same result.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "arguments/tensor_rules.h"
#include "base/error.h"
#include "cpu/arithmetic.h"
#include "kernels/merge/merge_gpu.h"
#include "operations/bind_merge.h"
#include "operations/sdpa.h"
#include "runtime/context.h"
#include "runtime/gpu_call.h"

namespace rapt {
namespace {

constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

struct Row {
  int64_t b, h, s;
};

// Return the offset of row (b, h, s) in elements. Dense: out is [B,H,S,D] and lse [B,H,S]. Packed: out is [total,H,D]
// and lse [H,total].
int64_t out_offset(const rapt_tensor& t, const Row& row) {
  const auto stride = strides_of(t);
  return t.rank == 4 ? row.b * stride[0] + row.h * stride[1] + row.s * stride[2]
                     : row.s * stride[0] + row.h * stride[1];
}
int64_t lse_offset(const rapt_tensor& t, const Row& row) {
  const auto stride = strides_of(t);
  return t.rank == 3 ? row.b * stride[0] + row.h * stride[1] + row.s * stride[2]
                     : row.h * stride[0] + row.s * stride[1];
}

float lse_at(const rapt_tensor& t, const Row& row) { return static_cast<const float*>(t.data)[lse_offset(t, row)]; }

void check_state(const rapt_merge_args& a, const rapt_tensor* t, const char* name, const std::vector<int64_t>& shape) {
  if (t == nullptr) invalid(name, " = NULL: every part needs out and lse");
  check_tensor(name, *t);
  if (t->dtype != RAPT_F32) invalid(name, ".dtype = ", name_of(static_cast<DType>(t->dtype)), ": must be f32");
  require_same_device(name, *t, *a.out, "out");
  if (t->rank != static_cast<int>(shape.size()) || !std::equal(shape.begin(), shape.end(), t->shape))
    invalid(name, ".shape = ", shape_text(*t), ": must match out, ", shape_text(*a.out));
}

bool on_gpu(const rapt_merge_args& args) { return args.out->device.type == RAPT_DEVICE_CUDA; }

void check_merge(const rapt_merge_args& a, void* stream) {
  check_struct_size("args", a.struct_size, &a, sizeof a);
  if (a.has != 0) invalid("has = ", a.has, ": no bits are defined");
  if (a.flags != 0) invalid("flags = ", a.flags, ": no bits are defined");
  if (a.count < 1) invalid("count = ", a.count, ": must be 1 or more");
  if (a.outs == nullptr) invalid("outs = NULL: must point to count tensors");
  if (a.lses == nullptr) invalid("lses = NULL: must point to count tensors");
  if (a.out == nullptr) invalid("out = NULL: required");
  check_tensor("out", *a.out);
  if (a.out->rank != 3 && a.out->rank != 4)
    invalid("out.rank = ", a.out->rank,
            ": must be 4 [batch, heads, seqlen, head_dim_v] or 3 [total, heads, head_dim_v]");
  if (!is_attention_output(static_cast<DType>(a.out->dtype)))
    invalid("out.dtype = ", name_of(static_cast<DType>(a.out->dtype)), ": must be f32, f16 or bf16");
  if (!on_gpu(a)) {
    if (a.out->device.index != 0) invalid("out.device.index = ", a.out->device.index, ": the CPU has index 0 only");
    if (stream != nullptr) invalid("stream = ", stream, ": must be NULL for CPU tensors");
  }

  const int64_t* s = a.out->shape;
  const std::vector<int64_t> out_shape(s, s + a.out->rank);
  const std::vector<int64_t> lse_shape =
      a.out->rank == 4 ? std::vector<int64_t>{s[0], s[1], s[2]} : std::vector<int64_t>{s[1], s[0]};
  const int64_t heads = s[1];
  check_output_layout("out", *a.out);
  if (a.lse != nullptr) {
    check_state(a, a.lse, "lse", lse_shape);
    check_output_layout("lse", *a.lse);
    check_disjoint("out", *a.out, "lse", *a.lse);
  }
  if (a.sinks != nullptr) {
    check_tensor("sinks", *a.sinks);
    if (a.sinks->dtype != RAPT_F32)
      invalid("sinks.dtype = ", name_of(static_cast<DType>(a.sinks->dtype)), ": must be f32");
    require_same_device("sinks", *a.sinks, *a.out, "out");
    require_shape("sinks", *a.sinks, {heads}, "[heads]");
    check_disjoint("out", *a.out, "sinks", *a.sinks);
    if (a.lse != nullptr) check_disjoint("lse", *a.lse, "sinks", *a.sinks);
  }
  for (int64_t p = 0; p < a.count; ++p) {
    const std::string out_name = concat("outs[", p, "]"), lse_name = concat("lses[", p, "]");
    check_state(a, a.outs[p], out_name.c_str(), out_shape);
    check_state(a, a.lses[p], lse_name.c_str(), lse_shape);
    for (const rapt_tensor* output : {a.out, a.lse}) {
      if (output == nullptr) continue;
      const char* name = output == a.out ? "out" : "lse";
      check_disjoint(name, *output, out_name.c_str(), *a.outs[p]);
      check_disjoint(name, *output, lse_name.c_str(), *a.lses[p]);
    }
  }
}

void merge_row(const rapt_merge_args& a, const Row& row) {
  double max = minus_infinity;
  for (int64_t p = 0; p < a.count; ++p) {
    const double lse = lse_at(*a.lses[p], row);
    if (lse > max || std::isnan(lse)) max = lse;
  }
  const double sink =
      a.sinks != nullptr ? static_cast<const float*>(a.sinks->data)[row.h * strides_of(*a.sinks)[0]] : minus_infinity;
  if (sink > max || std::isnan(sink)) max = sink;
  const double shift = max == minus_infinity ? 0.0 : max;
  double sum = std::exp(sink - shift);
  for (int64_t p = 0; p < a.count; ++p) sum += std::exp(lse_at(*a.lses[p], row) - shift);

  const auto dtype = static_cast<DType>(a.out->dtype);
  const int last = a.out->rank - 1;
  const int64_t out_first = out_offset(*a.out, row), out_stride = strides_of(*a.out)[last];
  for (int64_t c = 0; c < a.out->shape[last]; ++c) {
    double o = 0.0;
    bool first = true;  // keeps the sign of zero: 0 + -0 would be 0
    for (int64_t p = 0; p < a.count; ++p) {
      const double lse = lse_at(*a.lses[p], row);
      if (lse == minus_infinity) continue;  // an empty part adds nothing; its out is not read
      const rapt_tensor& part = *a.outs[p];
      const double value = static_cast<const float*>(part.data)[out_offset(part, row) + c * strides_of(part)[last]];
      const double term = value * (std::exp(lse - shift) / sum);
      o = first ? term : o + term;
      first = false;
    }
    store_float(dtype, a.out->data, out_first + c * out_stride, static_cast<float>(o));
  }
  if (a.lse != nullptr)
    static_cast<float*>(a.lse->data)[lse_offset(*a.lse, row)] =
        static_cast<float>(sum == 0.0 ? minus_infinity : shift + std::log(sum));
}

void merge_on_gpu(Context& context, const rapt_merge_args& args, void* stream) {
  const MergeConfig config{.out = static_cast<DType>(args.out->dtype)};
  const LaunchSpec spec = merge_launch(merge_params(args), config);
  if (spec.empty()) return;
  GpuCall call(context, {"rapt_merge", "out", args.out->device.index}, stream);
  call.run({{merge_unit(config), spec}});
}

}  // namespace

void merge(Context& context, const rapt_merge_args& args, void* stream) {
  check_merge(args, stream);
  if (on_gpu(args)) return merge_on_gpu(context, args, stream);
  const cpu::DefaultArithmetic scope;
  const bool dense = args.out->rank == 4;
  const int64_t batch = dense ? args.out->shape[0] : 1, heads = args.out->shape[1];
  const int64_t rows = dense ? args.out->shape[2] : args.out->shape[0];
  CpuResources& cpu = context.cpu();
  const std::lock_guard<std::mutex> lock(cpu.call_mutex);
  cpu.pool.parallel_for(batch * heads, [&](int, int64_t index) {
    for (int64_t s = 0; s < rows; ++s) merge_row(args, {index / heads, index % heads, s});
  });
}

}  // namespace rapt
