// rapt_qk and rapt_gemm. Checks the call, and describes it as one batched product of the rows of a with the rows of b
// (ProductParams in kernels/shared/products.h), for the CPU or a GPU. Called by c_api.cpp.
#include "cpu/products.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "arguments/tensor_rules.h"
#include "base/error.h"
#include "cpu/arithmetic.h"
#include "kernels/products/products_gpu.h"
#include "operations/products.h"
#include "operations/sdpa.h"
#include "runtime/context.h"
#include "runtime/gpu_call.h"

namespace rapt {
namespace {

// One of the two operands, with its descales.
struct Operand {
  const char* name;  // "q"
  const rapt_tensor* tensor;
  const rapt_tensor* descale;
  int32_t scales;
  std::string descale_name() const { return concat(name, "_descale"); }
};

// The ranks and kinds of scales that an operation accepts, besides none and tensor.
struct Rules {
  int rank;
  const char* meaning_a;
  const char* meaning_b;
  std::initializer_list<int32_t> kinds;
  const char* kinds_text;
};

void check_operand(const Operand& operand, int rank, const char* meaning) {
  if (operand.tensor == nullptr) invalid(operand.name, " = NULL: required");
  check_tensor(operand.name, *operand.tensor);
  require_rank(operand.name, *operand.tensor, rank, meaning);
  if (!is_attention_input(dtype_of(*operand.tensor)))
    invalid(operand.name, ".dtype = ", name_of(dtype_of(*operand.tensor)), ": must be ", input_dtypes.names());
}

// Returns log2 of the number of rows that share a scale of this kind.
int shift_of(int32_t scales) {
  return std::countr_zero(static_cast<unsigned>(std::max(rows_sharing(static_cast<ScaleKind>(scales)), 1)));
}

std::string text_of(const std::vector<int64_t>& shape) {
  const rapt_tensor view{nullptr, {}, 0, static_cast<int32_t>(shape.size()), shape.data(), nullptr};
  return shape_text(view);
}

void check_descale(const Operand& operand, const Rules& rules, const std::vector<int64_t>& heads, int64_t rows) {
  const std::string name = operand.descale_name();
  if (operand.scales < RAPT_SCALE_NONE || operand.scales > RAPT_SCALE_CHANNEL)
    invalid(operand.name, "_scales = ", operand.scales, ": not a rapt_scale_kind");
  if (operand.descale == nullptr) {
    if (operand.scales != RAPT_SCALE_NONE)
      invalid(operand.name, "_scales = ", operand.scales, ": given without ", name);
    return;
  }
  if (operand.scales == RAPT_SCALE_NONE) invalid(name, ": given, but ", operand.name, "_scales says RAPT_SCALE_NONE");
  if (operand.scales != RAPT_SCALE_TENSOR &&
      std::find(rules.kinds.begin(), rules.kinds.end(), operand.scales) == rules.kinds.end())
    invalid(operand.name, "_scales = ", operand.scales, ": must be ", rules.kinds_text);
  const rapt_tensor& t = *operand.descale;
  check_tensor(name.c_str(), t);
  require_dtype(name.c_str(), t, {DType::f32});
  require_same_device(name.c_str(), t, *operand.tensor, operand.name);
  if (!is_fp8(dtype_of(*operand.tensor)))
    invalid(name, ": given, but ", operand.name, " is ", name_of(dtype_of(*operand.tensor)),
            ": scales need FP8 storage");
  if (operand.scales == RAPT_SCALE_TENSOR) {
    if (t.rank > 1 || element_count(t) != 1)
      invalid(name, ".shape = ", shape_text(t), ": per-tensor scales have shape [] or [1]");
    return;
  }
  std::vector<int64_t> expected = heads;
  const int64_t together = int64_t{1} << shift_of(operand.scales);
  if (operand.scales != RAPT_SCALE_HEAD) expected.push_back((rows + together - 1) / together);
  if (t.rank != static_cast<int>(expected.size()) || !std::equal(expected.begin(), expected.end(), t.shape))
    invalid(name, ".shape = ", shape_text(t), ": must be ", text_of(expected));
}

// A negative or non-finite scale is an error. Only the CPU checks this; on a GPU the check would be too slow.
void check_factors(const Operand& operand) {
  if (operand.descale == nullptr || operand.descale->device.type != RAPT_DEVICE_CPU) return;
  const rapt_tensor& t = *operand.descale;
  const auto stride = strides_of(t);
  const auto* data = static_cast<const float*>(t.data);
  for (int64_t n = 0; n < element_count(t); ++n) {
    int64_t at = 0, rest = n;
    for (int d = t.rank - 1; d >= 0; --d) at += rest % t.shape[d] * stride[d], rest /= t.shape[d];
    if (!std::isfinite(data[at]) || data[at] < 0.0f)
      invalid(operand.descale_name(), ": element ", n, " is ", data[at], ": must be finite and not negative");
  }
}

// Returns a stride in elements. It is 0 for a dimension of size 1, whose stride has no meaning and must not affect
// alignment.
int64_t stride_of(const rapt_tensor& t, int d) { return t.shape[d] == 1 ? 0 : strides_of(t)[d]; }

FactorRef factor_of(const Operand& operand) {
  if (operand.descale == nullptr) return {};
  const rapt_tensor& t = *operand.descale;
  FactorRef factor;
  factor.data = static_cast<const float*>(t.data);
  if (operand.scales == RAPT_SCALE_TENSOR) return factor;
  if (t.rank > 1) factor.batch = stride_of(t, 0), factor.head = stride_of(t, 1);
  if (operand.scales != RAPT_SCALE_HEAD)
    factor.group = stride_of(t, t.rank - 1), factor.shift = shift_of(operand.scales);
  return factor;
}

// `row` and `column` are dimensions of t. If there is only one column, it counts as contiguous, whatever its stride is.
TensorRef rows_of(const rapt_tensor& t, int row, int column) {
  TensorRef ref{t.data, dtype_of(t), 0, 0, stride_of(t, row), t.shape[column] == 1 ? 1 : strides_of(t)[column]};
  if (t.rank == 4) ref.batch = stride_of(t, 0), ref.head = stride_of(t, 1);
  return ref;
}

// Checks the tensor `out`, including its shape. The operands must have been checked before.
void check_out(const rapt_tensor* out, const std::vector<int64_t>& shape, const char* meaning, const Operand& a,
               const Operand& b) {
  require_same_device(b.name, *b.tensor, *a.tensor, a.name);
  if (out == nullptr) invalid("out = NULL: required");
  check_tensor("out", *out);
  require_dtype("out", *out, {DType::f32, DType::f16, DType::bf16});
  require_same_device("out", *out, *a.tensor, a.name);
  if (out->rank != static_cast<int>(shape.size()) || !std::equal(shape.begin(), shape.end(), out->shape))
    invalid("out.shape = ", shape_text(*out), ": must be ", meaning, " = ", text_of(shape));
  check_output_layout("out", *out);
  for (const Operand* operand : {&a, &b}) {
    check_disjoint("out", *out, operand->name, *operand->tensor);
    if (operand->descale != nullptr) check_disjoint("out", *out, operand->descale_name().c_str(), *operand->descale);
  }
}

void check_place(const rapt_tensor& first, const char* name, void* stream) {
  if (first.device.type != RAPT_DEVICE_CPU) return;
  if (first.device.index != 0) invalid(name, ".device.index = ", first.device.index, ": the CPU has index 0 only");
  if (stream != nullptr) invalid("stream = ", stream, ": must be NULL for CPU tensors");
}

void check_bits(uint64_t has, uint64_t known_has, uint64_t flags) {
  if ((has & ~known_has) != 0) invalid("has = ", has, ": unknown bits ", has & ~known_has);
  if (flags != 0) invalid("flags = ", flags, ": no bits are defined");
}

void multiply_on_gpu(Context& context, const ProductParams& params, int device_index, const char* operation,
                     void* stream) {
  if (params.batch * params.heads * params.rows_a * params.rows_b == 0) return;
  GpuCall call(context, {operation, "out", device_index}, stream);
  const ProductConfig config = product_config(params, call.device());
  call.run({{product_unit(config), product_launch(params, config)}});
}

void multiply(Context& context, const ProductParams& params, const rapt_device& device, const char* operation,
              void* stream) {
  if (device.type == RAPT_DEVICE_CUDA) return multiply_on_gpu(context, params, device.index, operation, stream);
  const cpu::DefaultArithmetic scope;
  CpuResources& cpu = context.cpu();
  const std::lock_guard<std::mutex> lock(cpu.call_mutex);
  const size_t bytes = cpu::product_scratch_floats() * sizeof(float) * static_cast<size_t>(cpu.pool.size());
  cpu::multiply(cpu.pool, params, reinterpret_cast<float*>(cpu.scratch.reserve(bytes)));
}

float scale_of(const rapt_qk_args& args) {
  if ((args.has & RAPT_QK_HAS_SCALE) == 0) return 1.0f;
  if (!(std::fabs(args.scale) <= std::numeric_limits<float>::max()))
    invalid("scale = ", args.scale, ": must be a finite float");
  const auto scale = static_cast<float>(args.scale);
  if (scale == 0.0f && args.scale != 0.0)
    invalid("scale = ", args.scale, ": too small for a float, which would make it 0");
  return scale;
}

constexpr Rules qk_rules{4,
                         "[batch, heads_q, seqlen_q, head_dim]",
                         "[batch, heads_k, seqlen_k, head_dim]",
                         {RAPT_SCALE_HEAD, RAPT_SCALE_TOKEN, RAPT_SCALE_BLOCK64, RAPT_SCALE_BLOCK128},
                         "tensor, head, token, block64 or block128"};
constexpr Rules gemm_rules{2, "[m, k]", "[k, n]", {RAPT_SCALE_TOKEN}, "tensor or token"};

}  // namespace

ProductParams product_of(const rapt_qk_args& args, void* stream) {
  check_struct_size("args", args.struct_size, &args, sizeof args);
  check_bits(args.has, RAPT_QK_HAS_SCALE, args.flags);
  const Operand q{"q", args.q, args.q_descale, args.q_scales}, k{"k", args.k, args.k_descale, args.k_scales};
  check_operand(q, qk_rules.rank, qk_rules.meaning_a);
  check_operand(k, qk_rules.rank, qk_rules.meaning_b);
  const int64_t *a = q.tensor->shape, *b = k.tensor->shape;
  if (b[0] != a[0]) invalid("k.shape[0] = ", b[0], ": must be q's batch, ", a[0]);
  if (b[1] == 0 ? a[1] != 0 : a[1] % b[1] != 0) invalid("k.shape[1] = ", b[1], ": must divide q's heads, ", a[1]);
  if (b[3] != a[3]) invalid("k.shape[3] = ", b[3], ": must be q's head_dim, ", a[3]);
  check_place(*q.tensor, q.name, stream);
  check_descale(q, qk_rules, {a[0], a[1]}, a[2]);
  check_descale(k, qk_rules, {b[0], b[1]}, b[2]);
  check_out(args.out, {a[0], a[1], a[2], b[2]}, "[batch, heads_q, seqlen_q, seqlen_k]", q, k);
  ProductParams p;
  p.scale = scale_of(args);
  check_factors(q), check_factors(k);
  p.a = rows_of(*q.tensor, 2, 3), p.b = rows_of(*k.tensor, 2, 3), p.out = rows_of(*args.out, 2, 3);
  p.batch = a[0], p.heads = a[1], p.group = b[1] == 0 ? 1 : a[1] / b[1];
  p.rows_a = a[2], p.rows_b = b[2], p.depth = a[3];
  p.a_factor = factor_of(q), p.b_factor = factor_of(k);
  return p;
}

ProductParams product_of(const rapt_gemm_args& args, void* stream) {
  check_struct_size("args", args.struct_size, &args, sizeof args);
  check_bits(args.has, 0, args.flags);
  const Operand a{"a", args.a, args.a_descale, args.a_scales}, b{"b", args.b, args.b_descale, args.b_scales};
  check_operand(a, gemm_rules.rank, gemm_rules.meaning_a);
  check_operand(b, gemm_rules.rank, gemm_rules.meaning_b);
  const int64_t m = a.tensor->shape[0], depth = a.tensor->shape[1], n = b.tensor->shape[1];
  if (b.tensor->shape[0] != depth) invalid("b.shape[0] = ", b.tensor->shape[0], ": must be a's columns, ", depth);
  check_place(*a.tensor, a.name, stream);
  check_descale(a, gemm_rules, {}, m);
  check_descale(b, gemm_rules, {}, n);
  check_out(args.out, {m, n}, "[m, n]", a, b);
  check_factors(a), check_factors(b);
  ProductParams p;
  p.a = rows_of(*a.tensor, 0, 1), p.b = rows_of(*b.tensor, 1, 0), p.out = rows_of(*args.out, 0, 1);
  p.rows_a = m, p.rows_b = n, p.depth = depth;
  p.a_factor = factor_of(a), p.b_factor = factor_of(b);
  return p;
}

void qk(Context& context, const rapt_qk_args& args, void* stream) {
  const ProductParams params = product_of(args, stream);
  multiply(context, params, args.out->device, "rapt_qk", stream);
}

void gemm(Context& context, const rapt_gemm_args& args, void* stream) {
  const ProductParams params = product_of(args, stream);
  multiply(context, params, args.out->device, "rapt_gemm", stream);
}

}  // namespace rapt
