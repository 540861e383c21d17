// The rules of rapt_quantize_args; see quantize_rules.h.
#include "operations/quantize_rules.h"

#include <cmath>
#include <string>

#include "arguments/tensor_rules.h"
#include "base/error.h"

namespace rapt {
namespace {

constexpr int64_t max_size = int64_t{1} << 40;

const rapt_tensor& required(const char* name, const rapt_tensor* tensor) {
  if (tensor == nullptr) invalid(name, " = NULL: input, output and descale are required");
  check_tensor(name, *tensor);
  return *tensor;
}

bool is_packed(const rapt_quantize_args& a) { return a.cu_seqlens != nullptr; }
bool has_flag(const rapt_quantize_args& a, uint64_t flag) { return (a.flags & flag) != 0; }

void check_options(const rapt_quantize_args& a) {
  constexpr uint64_t known_has = (RAPT_QUANTIZE_HAS_MAX_SEQLEN << 1) - 1;
  constexpr uint64_t known_flags = (RAPT_QUANTIZE_SUPPLIED << 1) - 1;
  if ((a.has & ~known_has) != 0) invalid("has = ", a.has, ": unknown bits ", a.has & ~known_has);
  if ((a.flags & ~known_flags) != 0) invalid("flags = ", a.flags, ": unknown bits ", a.flags & ~known_flags);
  if (a.reserved != 0) invalid("reserved = ", a.reserved, ": must be 0");
  if (a.scales < RAPT_SCALE_TENSOR || a.scales > RAPT_SCALE_CHANNEL)
    invalid("scales = ", a.scales, ": must be a rapt_scale_kind, and not RAPT_SCALE_NONE");
  if ((a.has & RAPT_QUANTIZE_HAS_PERCENTILE) != 0) {
    if (!(a.percentile > 0 && a.percentile <= 100))
      invalid("percentile = ", a.percentile, ": must be above 0 and at most 100");
    if (has_flag(a, RAPT_QUANTIZE_SUPPLIED))
      invalid("percentile = ", a.percentile, ": given together with RAPT_QUANTIZE_SUPPLIED, which computes no scales");
  }
  if ((a.has & RAPT_QUANTIZE_HAS_MAX_SEQLEN) != 0) {
    if (!is_packed(a))
      invalid("max_seqlen = ", a.max_seqlen, ": only with cu_seqlens; dense tensors carry their lengths");
    if (a.max_seqlen < 0 || a.max_seqlen > max_size) invalid("max_seqlen = ", a.max_seqlen, ": must be from 0 to 2^40");
  } else if (is_packed(a)) {
    invalid("max_seqlen: required with cu_seqlens (set RAPT_QUANTIZE_HAS_MAX_SEQLEN)");
  }
}

void check_main_tensors(const rapt_quantize_args& a) {
  const rapt_tensor& input = required("input", a.input);
  require_rank("input", input, is_packed(a) ? 3 : 4,
               is_packed(a) ? "packed [total, heads, dim] with cu_seqlens" : "[batch, heads, seqlen, dim]");
  require_dtype("input", input, {DType::f32, DType::f16, DType::bf16});
  for (int i = 0; i < input.rank; ++i)
    if (input.shape[i] > max_size) invalid("input.shape = ", shape_text(input), ": sizes must be at most 2^40");
  const rapt_tensor& output = required("output", a.output);
  require_dtype("output", output, {DType::e4m3, DType::e5m2, DType::sim8});
  require_same_device("output", output, input, "input");
  if (is_packed(a))
    require_shape("output", output, {input.shape[0], input.shape[1], input.shape[2]}, "that of input");
  else
    require_shape("output", output, {input.shape[0], input.shape[1], input.shape[2], input.shape[3]}, "that of input");
  if (is_packed(a)) {
    check_tensor("cu_seqlens", *a.cu_seqlens);
    require_rank("cu_seqlens", *a.cu_seqlens, 1, "[batch + 1]");
    if (input.device.type == RAPT_DEVICE_CPU)
      require_dtype("cu_seqlens", *a.cu_seqlens, {DType::i32, DType::i64});
    else
      require_dtype("cu_seqlens", *a.cu_seqlens, {DType::i32});
    require_same_device("cu_seqlens", *a.cu_seqlens, input, "input");
    if (a.cu_seqlens->shape[0] < 1) invalid("cu_seqlens.shape = [0]: must be [batch + 1], at least [1]");
  }
}

void check_descale(const rapt_quantize_args& a, const QuantizeParams& p) {
  const rapt_tensor& t = required("descale", a.descale);
  require_dtype("descale", t, {DType::f32});
  require_same_device("descale", t, *a.input, "input");
  require_scale_shape("descale", t, p.group, {p.batch, p.heads, p.seqlen, is_packed(a) ? p.total : -1, p.dim});
}

void check_mean(const rapt_quantize_args& a, const QuantizeParams& p) {
  if (!has_flag(a, RAPT_QUANTIZE_SMOOTH)) {
    if (a.mean != nullptr) invalid("mean: given, but flags lack RAPT_QUANTIZE_SMOOTH");
    return;
  }
  if (a.mean == nullptr) invalid("mean = NULL: required with RAPT_QUANTIZE_SMOOTH, because rapt_sdpa needs it");
  check_tensor("mean", *a.mean);
  require_dtype("mean", *a.mean, {DType::f32});
  require_same_device("mean", *a.mean, *a.input, "input");
  require_shape("mean", *a.mean, {p.batch, p.heads, p.dim}, "[batch, heads, dim]");
}

void check_memory(const rapt_quantize_args& a) {
  const bool supplied = has_flag(a, RAPT_QUANTIZE_SUPPLIED);
  struct Named {
    const char* name;
    const rapt_tensor* tensor;
    bool written;
  };
  const Named tensors[] = {{"output", a.output, true},
                           {"descale", a.descale, !supplied},
                           {"mean", a.mean, true},
                           {"input", a.input, false},
                           {"cu_seqlens", a.cu_seqlens, false}};
  for (const Named& one : tensors) {
    if (one.tensor == nullptr || !one.written) continue;
    check_output_layout(one.name, *one.tensor);
    for (const Named& other : tensors)
      if (other.tensor != nullptr && &other != &one) check_disjoint(one.name, *one.tensor, other.name, *other.tensor);
  }
}

void set_tensor(TensorRef& ref, const rapt_tensor& t) {
  const auto s = strides_of(t);
  ref = t.rank == 4 ? TensorRef{t.data, dtype_of(t), s[0], s[1], s[2], s[3]}
                    : TensorRef{t.data, dtype_of(t), 0, s[1], s[0], s[2]};
}

// Sets only the sizes, because positions() and the rules of descale need nothing else.
QuantizeParams sizes_of(const rapt_quantize_args& a) {
  QuantizeParams p;
  set_tensor(p.input, *a.input);
  set_tensor(p.output, *a.output);
  const int64_t* shape = a.input->shape;
  p.heads = shape[1];
  p.dim = shape[a.input->rank - 1];
  p.batch = is_packed(a) ? a.cu_seqlens->shape[0] - 1 : shape[0];
  p.seqlen = is_packed(a) ? a.max_seqlen : shape[2];
  p.total = is_packed(a) ? shape[0] : 0;
  p.group = static_cast<ScaleKind>(a.scales);
  if (is_packed(a)) p.cu_seqlens = {static_cast<const int*>(a.cu_seqlens->data), strides_of(*a.cu_seqlens)[0]};
  p.hadamard = has_flag(a, RAPT_QUANTIZE_HADAMARD);
  p.supplied = has_flag(a, RAPT_QUANTIZE_SUPPLIED);
  if ((a.has & RAPT_QUANTIZE_HAS_PERCENTILE) != 0) p.percentile = a.percentile;
  return p;
}

void set_descale(QuantizeParams& p, const rapt_tensor& t) {
  const auto s = strides_of(t);
  p.descale = static_cast<float*>(t.data);
  if (p.group == ScaleKind::tensor) return;
  const bool packed_tokens = p.group == ScaleKind::token && p.cu_seqlens.present();
  p.descale_batch = packed_tokens ? 0 : s[0];
  p.descale_head = packed_tokens ? s[0] : s[1];
  if (p.group == ScaleKind::channel)
    p.descale_channel = s[2];
  else if (p.group != ScaleKind::head)
    p.descale_position = packed_tokens ? s[1] : s[2];
}

void check_lengths(const QuantizeParams& p) {
  const auto& list = p.cu_seqlens;
  if (list[0] != 0) invalid("cu_seqlens[0] = ", list[0], ": must be 0");
  for (index_t b = 1; b <= p.batch; ++b) {
    if (list[b] < list[b - 1])
      invalid("cu_seqlens[", b, "] = ", list[b], ": must not be less than cu_seqlens[", b - 1, "] = ", list[b - 1]);
    if (list[b] - list[b - 1] > p.seqlen)
      invalid("cu_seqlens[", b, "] = ", list[b], ": sequence ", b - 1, " has ", list[b] - list[b - 1],
              " rows, which is more than max_seqlen = ", p.seqlen);
  }
  if (list[p.batch] > p.total)
    invalid("cu_seqlens[", p.batch, "] = ", list[p.batch], ": reaches past input, which has ", p.total, " rows");
}

// Returns the index of a scale in its tensor, as text.
std::string descale_index(const QuantizeParams& p, index_t b, index_t h, index_t position, index_t channel) {
  switch (p.group) {
    case ScaleKind::tensor: return "";
    case ScaleKind::head: return concat("[", b, ", ", h, "]");
    case ScaleKind::channel: return concat("[", b, ", ", h, ", ", channel, "]");
    case ScaleKind::token:
      if (p.cu_seqlens.present()) return concat("[", h, ", ", position, "]");
      break;
    default: break;
  }
  return concat("[", b, ", ", h, ", ", position, "]");
}

// Checks the scales that some row uses. Scales that no row uses can have any value.
void check_supplied(const QuantizeParams& p) {
  for (index_t b = 0; b < p.batch; ++b) {
    const QuantizeRows rows = quantize_rows(p, b);
    if (rows.count == 0) continue;
    const index_t first = descale_position(p, rows, 0), last = descale_position(p, rows, rows.count - 1);
    const index_t channels = p.group == ScaleKind::channel ? p.dim : 1;
    for (index_t h = 0; h < p.heads; ++h)
      for (index_t position = first; position <= last; ++position)
        for (index_t channel = 0; channel < channels; ++channel) {
          const float factor = *p.descale_at(b, h, position, channel);
          if (!(factor >= 0x1p-126f) || !std::isfinite(factor))
            invalid("descale", descale_index(p, b, h, position, channel), " = ", factor,
                    ": must be finite and at least 2^-126");
        }
  }
}

}  // namespace

void check_quantize(const rapt_quantize_args& args, void* stream) {
  check_struct_size("args", args.struct_size, &args, sizeof args);
  check_options(args);
  check_main_tensors(args);
  const QuantizeParams sizes = sizes_of(args);
  check_descale(args, sizes);
  check_mean(args, sizes);
  check_memory(args);
  if (args.input->device.type == RAPT_DEVICE_CUDA) return;
  if (args.input->device.index != 0)
    invalid("input.device.index = ", args.input->device.index, ": the CPU has index 0 only");
  if (stream != nullptr) invalid("stream = ", stream, ": must be NULL for CPU tensors");
}

QuantizeParams quantize_params(const rapt_quantize_args& args) {
  QuantizeParams p = sizes_of(args);
  set_descale(p, *args.descale);
  if (args.mean != nullptr) {
    const auto s = strides_of(*args.mean);
    p.mean = static_cast<float*>(args.mean->data);
    p.mean_batch = s[0], p.mean_head = s[1], p.mean_channel = s[2];
  }
  return p;
}

void check_quantize_contents(const QuantizeParams& params) {
  if (params.cu_seqlens.present()) check_lengths(params);
  if (params.supplied) check_supplied(params);
}

}  // namespace rapt
