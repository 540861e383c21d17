// The rules of rapt_sdpa_args. Each sentence names argument, value and rule; docs/semantics.md has them in prose.
#include "arguments/arguments.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "arguments/scale_contents.h"
#include "arguments/sdpa_arguments.h"
#include "arguments/tensor_rules.h"
#include "base/error.h"
#include "problem/words.h"

namespace rapt {
namespace {

Access access_of(const rapt_tensor& t) {
  return access_of(dtype_of(t), geometry_of(t), reinterpret_cast<uintptr_t>(t.data));
}

// q, k, v, out: ranks, dtypes and the sizes they must share.
void read_main_tensors(const rapt_sdpa_args& a, Problem& p) {
  const struct {
    const char* name;
    const rapt_tensor* tensor;
  } required[] = {{"q", a.q}, {"k", a.k}, {"v", a.v}, {"out", a.out}};
  p.varlen = a.cu_seqlens_q != nullptr || a.cu_seqlens_k != nullptr;
  const int rank = p.varlen ? 3 : 4;
  for (const auto& [name, tensor] : required) {
    if (tensor == nullptr) invalid(name, " = NULL: q, k, v and out are required");
    check_tensor(name, *tensor);
    require_rank(name, *tensor, rank,
                 p.varlen ? "packed [total, heads, head_dim] with cu_seqlens" : "[batch, heads, seqlen, head_dim]");
    require_same_device(name, *tensor, *a.q, "q");
  }
  for (int i = 0; i < 3; ++i)
    require_dtype(required[i].name, *required[i].tensor,
                  {DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e5m2, DType::sim8});
  require_dtype("out", *a.out, {DType::f32, DType::f16, DType::bf16});

  const int64_t *q = a.q->shape, *k = a.k->shape, *v = a.v->shape;
  p.q = dtype_of(*a.q), p.k = dtype_of(*a.k), p.v = dtype_of(*a.v), p.out = dtype_of(*a.out);
  p.heads_q = q[1], p.heads_k = k[1];
  p.head_dim = q[rank - 1], p.head_dim_v = v[rank - 1];
  if (k[rank - 1] != p.head_dim) invalid("k.shape = ", shape_text(*a.k), ": head_dim must be that of q, ", p.head_dim);
  if (v[1] != p.heads_k) invalid("v.shape = ", shape_text(*a.v), ": heads must be those of k, ", p.heads_k);
  if (p.varlen) {
    p.total_q = q[0], p.total_k = k[0];
    if (v[0] != p.total_k) invalid("v.shape = ", shape_text(*a.v), ": total must be that of k, ", p.total_k);
    require_shape("out", *a.out, {p.total_q, p.heads_q, p.head_dim_v}, "[total_q, heads_q, head_dim_v]");
  } else {
    p.batch = q[0], p.seqlen_q = q[2], p.seqlen_k = k[2];
    if (k[0] != p.batch) invalid("k.shape = ", shape_text(*a.k), ": batch must be that of q, ", p.batch);
    require_shape("v", *a.v, {p.batch, p.heads_k, p.seqlen_k, p.head_dim_v}, "[batch, heads_k, seqlen_k, head_dim_v]");
    require_shape("out", *a.out, {p.batch, p.heads_q, p.seqlen_q, p.head_dim_v},
                  "[batch, heads_q, seqlen_q, head_dim_v]");
  }
  p.access_q = access_of(*a.q), p.access_k = access_of(*a.k), p.access_v = access_of(*a.v),
  p.access_out = access_of(*a.out);
}

// On a GPU a list has one dtype, since kernels read it; on the CPU it is converted first (host_lists.h).
void require_list_dtype(const char* name, const rapt_tensor& list, DType on_gpus) {
  if (list.device.type == RAPT_DEVICE_CPU)
    require_dtype(name, list, {DType::i32, DType::i64});
  else
    require_dtype(name, list, {on_gpus});
}

void read_lengths(const rapt_sdpa_args& a, Problem& p) {
  auto length_tensor = [&](const char* name, const rapt_tensor& t, int64_t size, const char* meaning) {
    check_tensor(name, t);
    require_list_dtype(name, t, DType::i32);
    require_same_device(name, t, *a.q, "q");
    require_shape(name, t, {size}, meaning);
  };
  auto maximum = [&](const char* name, uint64_t bit, int64_t value) {
    if ((a.has & bit) == 0) {
      if (p.varlen) invalid(name, ": required with cu_seqlens (set its RAPT_HAS bit)");
      return int64_t{0};
    }
    if (!p.varlen) invalid(name, " = ", value, ": only with cu_seqlens; dense tensors carry their lengths");
    if (value < 0 || value > words::max_size) invalid(name, " = ", value, ": must be from 0 to 2^40");
    return value;
  };
  const int64_t max_q = maximum("max_seqlen_q", RAPT_HAS_MAX_SEQLEN_Q, a.max_seqlen_q);
  const int64_t max_k = maximum("max_seqlen_k", RAPT_HAS_MAX_SEQLEN_K, a.max_seqlen_k);
  if (p.varlen) {
    if (a.cu_seqlens_q == nullptr) invalid("cu_seqlens_q = NULL: must be given together with cu_seqlens_k");
    if (a.cu_seqlens_k == nullptr) invalid("cu_seqlens_k = NULL: must be given together with cu_seqlens_q");
    check_tensor("cu_seqlens_q", *a.cu_seqlens_q);
    require_rank("cu_seqlens_q", *a.cu_seqlens_q, 1, "[batch + 1]");
    if (a.cu_seqlens_q->shape[0] < 1) invalid("cu_seqlens_q.shape = [0]: must be [batch + 1], at least [1]");
    p.batch = a.cu_seqlens_q->shape[0] - 1;
    length_tensor("cu_seqlens_q", *a.cu_seqlens_q, p.batch + 1, "[batch + 1]");
    length_tensor("cu_seqlens_k", *a.cu_seqlens_k, p.batch + 1, "[batch + 1] like cu_seqlens_q");
    p.seqlen_q = max_q, p.seqlen_k = max_k;
  }
  if (a.seqused_q != nullptr) {
    length_tensor("seqused_q", *a.seqused_q, p.batch, "[batch]");
    p.seqused_q = true;
  }
  if (a.seqused_k != nullptr) {
    length_tensor("seqused_k", *a.seqused_k, p.batch, "[batch]");
    p.seqused = true;
  }
}

// bias and mask: right-aligned broadcast to [batch, heads_q, seqlen_q, seqlen_k].
Broadcast read_broadcast(const char* name, const rapt_tensor& t, const Problem& p) {
  const int64_t full[max_rank] = {p.batch, p.heads_q, p.seqlen_q, p.seqlen_k};
  Broadcast result{dtype_of(t), {true, true, true, true}};
  for (int i = 0; i < t.rank; ++i) {
    const int axis = max_rank - t.rank + i;
    if (t.shape[i] != full[axis] && t.shape[i] != 1)
      invalid(name, ".shape = ", shape_text(t),
              ": must broadcast, aligned right, to [batch, heads_q, seqlen_q, seqlen_k] = [", full[0], ", ", full[1],
              ", ", full[2], ", ", full[3], "]");
    result.one[axis] = t.shape[i] == 1 && full[axis] != 1;
  }
  for (int axis = 0; axis < max_rank - t.rank; ++axis) result.one[axis] = full[axis] != 1;
  return result;
}

void read_score_tensors(const rapt_sdpa_args& a, Problem& p) {
  if (a.bias != nullptr) {
    check_tensor("bias", *a.bias);
    require_dtype("bias", *a.bias, {DType::f32, DType::f16, DType::bf16});
    require_same_device("bias", *a.bias, *a.q, "q");
    p.bias = read_broadcast("bias", *a.bias, p);
  }
  if (a.mask != nullptr) {
    check_tensor("mask", *a.mask);
    require_dtype("mask", *a.mask, {DType::u8});
    require_same_device("mask", *a.mask, *a.q, "q");
    p.mask = read_broadcast("mask", *a.mask, p);
  }
  if (a.alibi_slopes != nullptr) {
    check_tensor("alibi_slopes", *a.alibi_slopes);
    require_dtype("alibi_slopes", *a.alibi_slopes, {DType::f32});
    require_same_device("alibi_slopes", *a.alibi_slopes, *a.q, "q");
    p.alibi = true;
    p.alibi_per_batch = a.alibi_slopes->rank == 2;
    if (p.alibi_per_batch)
      require_shape("alibi_slopes", *a.alibi_slopes, {p.batch, p.heads_q}, "[heads_q] or [batch, heads_q]");
    else
      require_shape("alibi_slopes", *a.alibi_slopes, {p.heads_q}, "[heads_q] or [batch, heads_q]");
  }
  if (a.sinks != nullptr) {
    check_tensor("sinks", *a.sinks);
    require_dtype("sinks", *a.sinks, {DType::f32});
    require_same_device("sinks", *a.sinks, *a.q, "q");
    require_shape("sinks", *a.sinks, {p.heads_q}, "[heads_q]");
    p.sinks = true;
  }
}

ScaleKind read_descale(const char* name, const rapt_tensor* t, int32_t kind_code, const rapt_tensor& of,
                       const rapt_sdpa_args& a, const Problem& p) {
  const char which = name[0];
  if (kind_code < RAPT_SCALE_NONE || kind_code > RAPT_SCALE_CHANNEL)
    invalid(which, "_scales = ", kind_code, ": not a rapt_scale_kind");
  const auto kind = static_cast<ScaleKind>(kind_code);
  if (t == nullptr) {
    if (kind != ScaleKind::none) invalid(which, "_scales = ", kind_code, ": given without ", name);
    return kind;
  }
  if (kind == ScaleKind::none) invalid(name, ": given, but ", which, "_scales says RAPT_SCALE_NONE");
  check_tensor(name, *t);
  require_dtype(name, *t, {DType::f32});
  require_same_device(name, *t, *a.q, "q");
  if (kind == ScaleKind::channel && which != 'v')
    invalid(which, "_scales = channel: per-channel scales are for v only");
  const int64_t seqlen = which == 'q' ? p.seqlen_q : p.seqlen_k;
  require_scale_shape(name, *t, kind,
                      {p.batch, of.shape[1], seqlen, p.varlen ? of.shape[0] : -1, of.shape[of.rank - 1]});
  return kind;
}

void read_k_mean(const rapt_sdpa_args& a, Problem& p) {
  if (a.k_mean == nullptr) return;
  check_tensor("k_mean", *a.k_mean);
  require_dtype("k_mean", *a.k_mean, {DType::f32});
  require_same_device("k_mean", *a.k_mean, *a.q, "q");
  require_shape("k_mean", *a.k_mean, {p.batch, p.heads_k, p.head_dim}, "[batch, heads_k, head_dim]");
  if (!is_fp8(p.k))
    invalid("k_mean: given, but k is ", name_of(p.k), ": only k in e4m3, e5m2 or sim8 is smoothed before it is stored");
  p.smooth_k = true;
}

template <class... Name>
void check_start(int64_t start, const Name&... name) {
  if (start < -words::max_position || start > words::max_position)
    invalid(name..., " = ", start, ": must be within -2^60 to 2^60");
}

void read_starts(const rapt_sdpa_args& a, Problem& p) {
  const struct {
    const char *name, *scalar;
    const rapt_tensor* tensor;
    uint64_t bit;
    int64_t value;
  } starts[] = {{"q_starts", "q_start", a.q_starts, RAPT_HAS_Q_START, a.q_start},
                {"k_starts", "k_start", a.k_starts, RAPT_HAS_K_START, a.k_start}};
  for (const auto& s : starts) {
    if (s.tensor == nullptr) {
      if ((a.has & s.bit) == 0) continue;
      check_start(s.value, s.scalar);
      p.has_starts = true;
      continue;
    }
    if ((a.has & s.bit) != 0) invalid(s.name, ": given together with the scalar ", s.scalar, "; give one of them");
    check_tensor(s.name, *s.tensor);
    require_list_dtype(s.name, *s.tensor, DType::i64);
    require_same_device(s.name, *s.tensor, *a.q, "q");
    require_shape(s.name, *s.tensor, {p.batch}, "[batch]");
    p.has_starts = true;
  }
}

void read_options(const rapt_sdpa_args& a, Problem& p) {
  if ((a.flags & RAPT_CAUSAL) != 0 && (a.flags & RAPT_CAUSAL_TOP_LEFT) != 0)
    invalid("flags: RAPT_CAUSAL and RAPT_CAUSAL_TOP_LEFT exclude each other");
  p.causal = (a.flags & RAPT_CAUSAL) != 0            ? Causal::bottom_right
             : (a.flags & RAPT_CAUSAL_TOP_LEFT) != 0 ? Causal::top_left
                                                     : Causal::none;
  p.partial = (a.flags & RAPT_PARTIAL) != 0;
  p.invariant = (a.flags & RAPT_INVARIANT) != 0;
  if ((a.has & RAPT_HAS_WINDOW) != 0) p.window = Window{a.window_left, a.window_right};
  auto as_float = [](const char* name, double value) {
    if (!std::isfinite(value) || std::abs(value) > std::numeric_limits<float>::max())
      invalid(name, " = ", value, ": must be a finite float");
    const auto narrowed = static_cast<float>(value);
    if (narrowed == 0.0f && value != 0.0) invalid(name, " = ", value, ": too small for a float, which would make it 0");
    return narrowed;
  };
  if ((a.has & RAPT_HAS_SCALE) != 0) p.scale = as_float("softmax_scale", a.softmax_scale);
  if ((a.has & RAPT_HAS_SOFTCAP) != 0) p.softcap = as_float("softcap", a.softcap);
  if ((a.has & RAPT_HAS_SPLITS) != 0) {
    if (a.splits < 1) invalid("splits = ", a.splits, ": must be 1 or more");
    p.splits = a.splits;
  }
  if (a.pv < RAPT_PV_AUTO || a.pv > RAPT_PV_FP8X2) invalid("pv = ", a.pv, ": not a rapt_pv_mode");
  if (a.acc < RAPT_ACC_F32 || a.acc > RAPT_ACC_F16) invalid("acc = ", a.acc, ": not a rapt_acc_mode");
  if (a.reserved != 0) invalid("reserved = ", a.reserved, ": must be 0");
  p.pv = static_cast<PvMode>(a.pv);
  p.acc = static_cast<AccMode>(a.acc);
  if (a.score_mod != nullptr) unsupported("score_mod: no kernel family of this build applies score modifications");
}

void check_outputs(const rapt_sdpa_args& a, Problem& p) {
  if (a.lse != nullptr) {
    check_tensor("lse", *a.lse);
    require_dtype("lse", *a.lse, {DType::f32});
    require_same_device("lse", *a.lse, *a.q, "q");
    if (p.varlen)
      require_shape("lse", *a.lse, {p.heads_q, p.total_q}, "[heads_q, total_q]");
    else
      require_shape("lse", *a.lse, {p.batch, p.heads_q, p.seqlen_q}, "[batch, heads_q, seqlen_q]");
    p.lse = true;
  }
  for (size_t i = 0; i < output_count; ++i) {
    const TensorArgument& output = tensor_arguments[i];
    const rapt_tensor* const written = a.*output.member;
    if (written == nullptr) continue;
    check_output_layout(output.name, *written);
    for (const TensorArgument& other : std::span(tensor_arguments).subspan(i + 1))
      if (const rapt_tensor* const tensor = a.*other.member) check_disjoint(output.name, *written, other.name, *tensor);
  }
}

// cu_seqlens: begins at 0, never falls, ends within the packed tensor, and no sequence is longer than its maximum.
void check_cu_seqlens(const char* name, const rapt_tensor& t, int64_t total, const char* tensor_name, int64_t longest) {
  const auto* values = static_cast<const int32_t*>(t.data);
  const int64_t stride = strides_of(t)[0];
  if (values[0] != 0) invalid(name, "[0] = ", values[0], ": must be 0");
  for (int64_t b = 1; b < t.shape[0]; ++b) {
    const int32_t previous = values[(b - 1) * stride], value = values[b * stride];
    if (value < previous)
      invalid(name, "[", b, "] = ", value, ": must not be less than ", name, "[", b - 1, "] = ", previous);
  }
  const int32_t last = values[(t.shape[0] - 1) * stride];
  if (last > total)
    invalid(name, "[", t.shape[0] - 1, "] = ", last, ": reaches past ", tensor_name, ", which has ", total, " rows");
  for (int64_t b = 1; b < t.shape[0]; ++b) {
    const int64_t length = values[b * stride] - values[(b - 1) * stride];
    if (length > longest)
      invalid(name, ": sequence ", b - 1, " has ", length, " rows: must not exceed max_seqlen_", tensor_name, " = ",
              longest);
  }
}

// seqused: each between 0 and what its sequence has.
void check_used(const char* name, const rapt_tensor* used, const rapt_tensor* cu_seqlens, int64_t seqlen,
                const char* what) {
  if (used == nullptr) return;
  const auto entry = [](const rapt_tensor& list, int64_t i) {
    return int64_t{static_cast<const int32_t*>(list.data)[i * strides_of(list)[0]]};
  };
  for (int64_t b = 0; b < used->shape[0]; ++b) {
    const int64_t capacity = cu_seqlens != nullptr ? entry(*cu_seqlens, b + 1) - entry(*cu_seqlens, b) : seqlen;
    const int64_t value = entry(*used, b);
    if (value < 0 || value > capacity)
      invalid(name, "[", b, "] = ", value, ": must be between 0 and the sequence's ", what, ", ", capacity);
  }
}

void check_starts(const char* name, const rapt_tensor* starts) {
  if (starts == nullptr) return;
  const auto* values = static_cast<const int64_t*>(starts->data);
  const int64_t stride = strides_of(*starts)[0];
  for (int64_t b = 0; b < starts->shape[0]; ++b) check_start(values[b * stride], name, "[", b, "]");
}

void check_mask_values(const rapt_tensor& mask) {
  if (element_count(mask) == 0) return;
  const auto strides = strides_of(mask);
  int64_t shape[max_rank] = {1, 1, 1, 1}, step[max_rank] = {0, 0, 0, 0};
  for (int i = 0; i < mask.rank; ++i) {
    step[max_rank - mask.rank + i] = strides[i];
    shape[max_rank - mask.rank + i] = strides[i] == 0 ? 1 : mask.shape[i];  // an expanded dimension is read once
  }
  const auto* data = static_cast<const uint8_t*>(mask.data);
  for (int64_t b = 0; b < shape[0]; ++b)
    for (int64_t h = 0; h < shape[1]; ++h)
      for (int64_t i = 0; i < shape[2]; ++i) {
        const uint8_t* row = data + b * step[0] + h * step[1] + i * step[2];
        uint8_t seen = 0;
        for (int64_t j = 0; j < shape[3]; ++j) seen |= row[j * step[3]];
        if (seen > 1) invalid("mask: row (", b, ", ", h, ", ", i, ") holds a value other than 0 and 1");
      }
}

}  // namespace

void check_workspace_disjoint(const rapt_sdpa_args& args, size_t used) {
  const auto bytes = static_cast<int64_t>(used);
  const rapt_tensor workspace{args.workspace, args.q->device, RAPT_U8, 1, &bytes, nullptr};
  for (const TensorArgument& argument : tensor_arguments)
    if (const rapt_tensor* const tensor = args.*argument.member)
      check_disjoint("workspace", workspace, argument.name, *tensor);
}

Problem problem_from(const rapt_sdpa_args& args) {
  check_struct_size("args", args.struct_size, &args, sizeof args);
  constexpr uint64_t known_has = (RAPT_HAS_SPLITS << 1) - 1, known_flags = (RAPT_CHECK_CONTENTS << 1) - 1;
  if ((args.has & ~known_has) != 0) invalid("has = ", args.has, ": unknown bits ", args.has & ~known_has);
  if ((args.flags & ~known_flags) != 0) invalid("flags = ", args.flags, ": unknown bits ", args.flags & ~known_flags);
  // First, since the tensors of a paged call have other shapes, about which the rules below would complain.
  if (args.block_table != nullptr)
    unsupported("block_table: paged KV is not supported by any kernel family of this build");
  Problem problem;
  read_main_tensors(args, problem);
  read_lengths(args, problem);
  read_score_tensors(args, problem);
  problem.q_scales = read_descale("q_descale", args.q_descale, args.q_scales, *args.q, args, problem);
  problem.k_scales = read_descale("k_descale", args.k_descale, args.k_scales, *args.k, args, problem);
  problem.v_scales = read_descale("v_descale", args.v_descale, args.v_scales, *args.v, args, problem);
  read_k_mean(args, problem);
  read_starts(args, problem);
  read_options(args, problem);
  check_outputs(args, problem);
  validate(problem);
  return problem;
}

void check_contents(const rapt_sdpa_args& args, const Problem& problem) {
  if (problem.varlen) {
    check_cu_seqlens("cu_seqlens_q", *args.cu_seqlens_q, problem.total_q, "q", problem.seqlen_q);
    check_cu_seqlens("cu_seqlens_k", *args.cu_seqlens_k, problem.total_k, "k", problem.seqlen_k);
  }
  check_used("seqused_q", args.seqused_q, args.cu_seqlens_q, problem.seqlen_q, "queries");
  check_used("seqused_k", args.seqused_k, args.cu_seqlens_k, problem.seqlen_k, "keys");
  check_starts("q_starts", args.q_starts);
  check_starts("k_starts", args.k_starts);
  check_scale_contents(args, problem);
  if (args.mask != nullptr) check_mask_values(*args.mask);
}

}  // namespace rapt
