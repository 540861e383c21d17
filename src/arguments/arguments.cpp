// The rules of rapt_sdpa_args. Each error sentence names argument, value and rule. docs/semantics.md explains the
// rules.
#include "arguments/arguments.h"

#include <algorithm>
#include <span>
#include <utility>

#include "arguments/row_rules.h"
#include "arguments/scale_contents.h"
#include "arguments/sdpa_arguments.h"
#include "arguments/tensor_rules.h"
#include "base/error.h"
#include "problem/words.h"

namespace rapt {
namespace {

Access access_of(const rapt_tensor& t, bool cache = false) {
  return access_of(dtype_of(t), geometry_of(t), reinterpret_cast<uintptr_t>(t.data), cache);
}

// Reads max_seqlen_q and max_seqlen_k, which only packed tensors have. Dense tensors carry their lengths, and
// read_pages() reads the maximum of paged keys.
void read_maxima(const rapt_sdpa_args& a, bool packed, Sizes& sizes) {
  const struct {
    Dim dim;
    const char* name;
    uint64_t bit;
    int64_t value;
  } maxima[] = {{Dim::seqlen_q, "max_seqlen_q", RAPT_HAS_MAX_SEQLEN_Q, a.max_seqlen_q},
                {Dim::seqlen_k, "max_seqlen_k", RAPT_HAS_MAX_SEQLEN_K, a.max_seqlen_k}};
  for (const auto& [dim, name, bit, value] : maxima) {
    if (dim == Dim::seqlen_k && a.block_table != nullptr) continue;
    const bool given = (a.has & bit) != 0;
    if (packed && !given) invalid(name, ": required with cu_seqlens (set its RAPT_HAS bit)");
    if (!packed && given) invalid(name, " = ", value, ": only with cu_seqlens; dense tensors carry their lengths");
    if (packed) sizes.set(dim, value, name);
  }
}

// Reads the page size and the longest possible sequence of a paged cache.
void read_pages(const rapt_sdpa_args& a, Sizes& sizes) {
  const rapt_tensor &table = *a.block_table, &k = *a.k;
  check_tensor("block_table", table);
  check_tensor("k", k);
  if (table.rank != 2)
    invalid("block_table.rank = ", table.rank, " (shape ", shape_text(table), "): must be 2, [batch, pages]");
  if (k.rank != 4)
    invalid("k.rank = ", k.rank, " (shape ", shape_text(k),
            "): must be 4 with block_table, [num_pages, heads_k, page_size, head_dim]");
  if (k.shape[2] < 1) invalid("k.shape = ", shape_text(k), ": page_size must be at least 1");
  sizes.set(Dim::page_size, k.shape[2], "k");
  int64_t most = 0;
  if (__builtin_mul_overflow(table.shape[1], k.shape[2], &most)) most = INT64_MAX;
  const bool given = (a.has & RAPT_HAS_MAX_SEQLEN_K) != 0;
  if (given && a.max_seqlen_k > most)
    invalid("max_seqlen_k = ", a.max_seqlen_k, ": must be at most ", most, ", because a row of block_table has ",
            table.shape[1], " pages of ", k.shape[2], " keys");
  const int64_t longest = given ? a.max_seqlen_k : most;
  if (k.shape[0] < 1 && longest > 0)
    invalid("k.shape = ", shape_text(k), ": num_pages must be at least 1, because max_seqlen_k is above 0");
  if (longest > INT32_MAX)
    invalid(given ? "max_seqlen_k" : "block_table: pages * page_size", " = ", longest,
            ": must be below 2^31 with block_table");
  if (k.shape[0] > INT32_MAX) invalid("k.shape = ", shape_text(k), ": num_pages must be below 2^31");
  sizes.set(Dim::seqlen_k, longest, given ? "max_seqlen_k" : "block_table");
}

// Checks every tensor by its row of the table, and reads the sizes of the problem from them.
void read_tensors(const rapt_sdpa_args& a, Problem& p) {
  for (const auto& [name, tensor] : {std::pair{"q", a.q}, {"k", a.k}, {"v", a.v}, {"out", a.out}})
    if (tensor == nullptr) invalid(name, " = NULL: q, k, v and out are required");
  const bool paged = a.block_table != nullptr;
  p.varlen = a.cu_seqlens_q != nullptr || a.cu_seqlens_k != nullptr;
  Sizes sizes;
  read_maxima(a, p.varlen, sizes);
  if (paged) read_pages(a, sizes);
  if (paged && a.cu_seqlens_k != nullptr)
    invalid("cu_seqlens_k: must be NULL with block_table; seqused_k gives the lengths of paged sequences");
  if (p.varlen && a.cu_seqlens_q == nullptr) invalid("cu_seqlens_q = NULL: must be given together with cu_seqlens_k");
  if (p.varlen && a.cu_seqlens_k == nullptr && !paged)
    invalid("cu_seqlens_k = NULL: must be given together with cu_seqlens_q");
  check_tensor_rows(a, p.varlen, sizes);
  p.q = dtype_of(*a.q), p.k = dtype_of(*a.k), p.v = dtype_of(*a.v), p.out = dtype_of(*a.out);
  p.batch = sizes[Dim::batch], p.heads_q = sizes[Dim::heads_q], p.heads_k = sizes[Dim::heads_k];
  p.seqlen_q = sizes[Dim::seqlen_q], p.seqlen_k = sizes[Dim::seqlen_k];
  p.head_dim = sizes[Dim::head_dim], p.head_dim_v = sizes[Dim::head_dim_v];
  if (p.varlen) p.total_q = sizes[Dim::total_q];
  if (p.varlen && !paged) p.total_k = sizes[Dim::total_k];
  if (paged) p.page_size = sizes[Dim::page_size];
  p.v_in_k = is_v_in_k(*a.k, *a.v);
  p.access_q = access_of(*a.q), p.access_k = access_of(*a.k, paged), p.access_v = access_of(*a.v, paged),
  p.access_out = access_of(*a.out);
}

// Returns the axes along which a bias or mask is broadcast.
Broadcast broadcast_of(const rapt_tensor& t, const Problem& p) {
  const int64_t full[max_rank] = {p.batch, p.heads_q, p.seqlen_q, p.seqlen_k};
  Broadcast result{dtype_of(t), {true, true, true, true}};
  result.access = score_access(result.dtype, geometry_of(t), reinterpret_cast<uintptr_t>(t.data));
  for (int axis = 0; axis < max_rank; ++axis) {
    const int i = axis - (max_rank - t.rank);
    result.one[static_cast<size_t>(axis)] = (i < 0 || t.shape[i] == 1) && full[axis] != 1;
  }
  return result;
}

// Reads which optional tensors are given.
void read_presence(const rapt_sdpa_args& a, Problem& p) {
  p.lse = a.lse != nullptr;
  p.seqused_q = a.seqused_q != nullptr;
  p.seqused = a.seqused_k != nullptr;
  p.sinks = a.sinks != nullptr;
  p.alibi = a.alibi_slopes != nullptr;
  p.alibi_per_batch = p.alibi && a.alibi_slopes->rank == 2;
  p.smooth_k = a.k_mean != nullptr;
  if (a.bias != nullptr) p.bias = broadcast_of(*a.bias, p);
  if (a.mask != nullptr) p.mask = broadcast_of(*a.mask, p);
  if (p.smooth_k && !is_fp8(p.k))
    invalid("k_mean: given, but k is ", name_of(p.k), ": only k in ", fp8_dtypes.names(),
            " is smoothed before it is stored");
}

ScaleKind read_descale(const char* name, const rapt_tensor* t, int32_t kind_code, const rapt_tensor& of,
                       const Problem& p) {
  const char which = name[0];
  const auto kind = static_cast<ScaleKind>(kind_code);
  if (t == nullptr) {
    if (kind != ScaleKind::none) invalid(which, "_scales = ", kind_code, ": given without ", name);
    return kind;
  }
  if (kind == ScaleKind::none) invalid(name, ": given, but ", which, "_scales says RAPT_SCALE_NONE");
  if (kind == ScaleKind::channel && which != 'v')
    invalid(which, "_scales = channel: per-channel scales are for v only");
  const bool paged = which != 'q' && p.page_size > 0;
  if (paged && kind == ScaleKind::token) {
    require_shape(name, *t, {of.shape[0], of.shape[2], of.shape[1]}, "[num_pages, page_size, heads_k]");
    return kind;
  }
  const int64_t seqlen = which == 'q' ? p.seqlen_q : p.seqlen_k;
  require_scale_shape(name, *t, kind,
                      {p.batch, of.shape[1], seqlen, p.varlen && !paged ? of.shape[0] : -1, of.shape[of.rank - 1]});
  return kind;
}

void read_starts(const rapt_sdpa_args& a, Problem& p) {
  const struct {
    const char *name, *scalar;
    const rapt_tensor* tensor;
    uint64_t bit;
  } starts[] = {{"q_starts", "q_start", a.q_starts, RAPT_HAS_Q_START},
                {"k_starts", "k_start", a.k_starts, RAPT_HAS_K_START}};
  for (const auto& [name, scalar, tensor, bit] : starts) {
    const bool given = (a.has & bit) != 0;
    if (given && tensor != nullptr) invalid(name, ": given together with the scalar ", scalar, "; give one of them");
    p.has_starts = p.has_starts || given || tensor != nullptr;
  }
}

void read_options(const rapt_sdpa_args& a, Problem& p) {
  if ((a.flags & RAPT_CAUSAL) != 0 && (a.flags & RAPT_CAUSAL_TOP_LEFT) != 0)
    invalid("flags: RAPT_CAUSAL and RAPT_CAUSAL_TOP_LEFT exclude each other");
  p.position_mask.causal = (a.flags & RAPT_CAUSAL) != 0            ? Causal::bottom_right
                           : (a.flags & RAPT_CAUSAL_TOP_LEFT) != 0 ? Causal::top_left
                                                                   : Causal::none;
  p.partial = (a.flags & RAPT_PARTIAL) != 0;
  p.invariant = (a.flags & RAPT_INVARIANT) != 0;
  for (const ScalarArgument& row : scalar_arguments)
    if (row.position != nullptr && (a.has & row.has) != 0) p.position_mask.*row.position = a.*row.integer;
  if ((a.has & RAPT_HAS_SCALE) != 0) p.scale = static_cast<float>(a.softmax_scale);
  if ((a.has & RAPT_HAS_SOFTCAP) != 0) p.softcap = static_cast<float>(a.softcap);
  if ((a.has & RAPT_HAS_SPLITS) != 0) p.splits = a.splits;
  p.pv = static_cast<PvMode>(a.pv);
  p.acc = static_cast<AccMode>(a.acc);
  if (a.score_mod != nullptr) unsupported("score_mod: no kernel family of this build applies score modifications");
}

void check_outputs(const rapt_sdpa_args& a) {
  for (size_t i = 0; i < output_count; ++i) {
    const TensorArgument& output = tensor_arguments[i];
    const rapt_tensor* const written = a.*output.member;
    if (written == nullptr) continue;
    check_output_layout(output.name, *written);
    const Bytes bytes(output.name, *written);
    for (const TensorArgument& other : std::span(tensor_arguments).subspan(i + 1))
      if (const rapt_tensor* const tensor = a.*other.member) bytes.check_disjoint(other.name, *tensor);
  }
}

// cu_seqlens must start with 0, never decrease, end within the packed tensor, and have no sequence above its maximum.
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

// seqused: each value must be from 0 to the length of its sequence.
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
  for (int64_t b = 0; b < starts->shape[0]; ++b) {
    const int64_t start = values[b * stride];
    if (start < -words::max_position || start > words::max_position)
      invalid(name, "[", b, "] = ", start, ": must be within -2^60 to 2^60");
  }
}

// The entries of block_table for the keys in use must be pages of the cache. Other entries may have any value.
void check_block_table(const rapt_sdpa_args& a, const Problem& p) {
  const rapt_tensor& table = *a.block_table;
  const auto* entries = static_cast<const int32_t*>(table.data);
  const auto strides = strides_of(table);
  for (int64_t b = 0; b < p.batch; ++b) {
    int64_t keys = p.seqlen_k;
    if (a.seqused_k != nullptr) keys = static_cast<const int32_t*>(a.seqused_k->data)[b * strides_of(*a.seqused_k)[0]];
    for (int64_t i = 0; i * p.page_size < keys; ++i) {
      const int32_t page = entries[b * strides[0] + i * strides[1]];
      if (page < 0 || page >= a.k->shape[0])
        invalid("block_table[", b, ", ", i, "] = ", page, ": must be a page of k, from 0 to ", a.k->shape[0] - 1,
                ", because sequence ", b, " has ", keys, " keys");
    }
  }
}

void check_mask_values(const rapt_tensor& mask) {
  if (element_count(mask) == 0) return;
  const auto strides = strides_of(mask);
  int64_t shape[max_rank] = {1, 1, 1, 1}, step[max_rank] = {0, 0, 0, 0};
  for (int i = 0; i < mask.rank; ++i) {
    step[max_rank - mask.rank + i] = strides[i];
    shape[max_rank - mask.rank + i] = strides[i] == 0 ? 1 : mask.shape[i];  // stride 0: one element for all indices
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
  if ((args.has & ~known_has) != 0) invalid("has = ", args.has, ": unknown bits ", args.has & ~known_has);
  if ((args.flags & ~known_flags) != 0) invalid("flags = ", args.flags, ": unknown bits ", args.flags & ~known_flags);
  check_scalar_rows(args);
  Problem problem;
  read_tensors(args, problem);
  read_presence(args, problem);
  problem.q_scales = read_descale("q_descale", args.q_descale, args.q_scales, *args.q, problem);
  problem.k_scales = read_descale("k_descale", args.k_descale, args.k_scales, *args.k, problem);
  problem.v_scales = read_descale("v_descale", args.v_descale, args.v_scales, *args.v, problem);
  read_starts(args, problem);
  read_options(args, problem);
  check_outputs(args);
  validate(problem);
  return problem;
}

void check_contents(const rapt_sdpa_args& args, const Problem& problem) {
  if (args.cu_seqlens_q != nullptr)
    check_cu_seqlens("cu_seqlens_q", *args.cu_seqlens_q, problem.total_q, "q", problem.seqlen_q);
  if (args.cu_seqlens_k != nullptr)
    check_cu_seqlens("cu_seqlens_k", *args.cu_seqlens_k, problem.total_k, "k", problem.seqlen_k);
  check_used("seqused_q", args.seqused_q, args.cu_seqlens_q, problem.seqlen_q, "queries");
  check_used("seqused_k", args.seqused_k, args.cu_seqlens_k, problem.seqlen_k, "keys");
  if (args.block_table != nullptr) check_block_table(args, problem);
  check_starts("q_starts", args.q_starts);
  check_starts("k_starts", args.k_starts);
  check_scale_contents(args, problem);
  if (args.mask != nullptr) check_mask_values(*args.mask);
}

bool is_v_in_k(const rapt_tensor& k, const rapt_tensor& v) {
  if (v.data != k.data || v.data == nullptr || v.dtype != k.dtype) return false;
  const auto last = static_cast<size_t>(k.rank) - 1;
  return strides_of(v) == strides_of(k) && v.shape[last] <= k.shape[last];
}

}  // namespace rapt
