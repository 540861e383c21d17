// The rules of rapt_kv_append_args that need no contents; see kv_append_rules.h. kv_append_contents.cpp has the others.
#include "operations/kv_append_rules.h"

#include <algorithm>
#include <vector>

#include "arguments/tensor_rules.h"
#include "base/error.h"

namespace rapt {
namespace {

constexpr int64_t max_size = int64_t{1} << 40;
constexpr int64_t max_rows = (int64_t{1} << 31) - 1;  // FastDivmod divides numbers below 2^31
using Args = rapt_kv_append_args;

const rapt_tensor& required(const char* name, const rapt_tensor* tensor) {
  if (tensor == nullptr) invalid(name, " = NULL: k, v, k_cache and v_cache are required");
  return *tensor;
}
bool has_flag(const Args& a, uint64_t flag) { return (a.flags & flag) != 0; }
bool is_packed(const Args& a) { return a.k->rank == 3; }
bool is_paged(const Args& a) { return a.block_table != nullptr; }
bool has_pages(const Args& a) { return is_paged(a) || a.slot_mapping != nullptr; }
int64_t batch_of(const Args& a) {
  if (!is_packed(a)) return a.k->shape[0];
  return a.cu_seqlens_new == nullptr ? 1 : a.cu_seqlens_new->shape[0] - 1;
}
int64_t dim_of(const rapt_tensor& t) { return t.shape[t.rank - 1]; }
int64_t tokens_of(const rapt_tensor& t) { return t.rank == 3 ? t.shape[0] : t.shape[2]; }

void check_options(const Args& a) {
  constexpr uint64_t known = (RAPT_KV_APPEND_CHECK_CONTENTS << 1) - 1;
  if (a.has != 0) invalid("has = ", a.has, ": unknown bits ", a.has);
  if ((a.flags & ~known) != 0) invalid("flags = ", a.flags, ": unknown bits ", a.flags & ~known);
  if (a.cos == nullptr && has_flag(a, RAPT_KV_APPEND_INTERLEAVED)) invalid("interleaved: given without cos and sin");
  if (a.q == nullptr && has_flag(a, RAPT_KV_APPEND_Q_AT_START)) invalid("q_at_start: given without q");
}

struct Named {
  const char* name;
  const rapt_tensor* tensor;
};
std::vector<Named> tensors_of(const Args& a) {
  return {{"k", a.k},
          {"v", a.v},
          {"k_cache", a.k_cache},
          {"v_cache", a.v_cache},
          {"cu_seqlens_new", a.cu_seqlens_new},
          {"seqused_k", a.seqused_k},
          {"starts", a.starts},
          {"slot_mapping", a.slot_mapping},
          {"block_table", a.block_table},
          {"cache_batch_idx", a.cache_batch_idx},
          {"k_descale", a.k_descale},
          {"v_descale", a.v_descale},
          {"cos", a.cos},
          {"sin", a.sin},
          {"positions", a.positions},
          {"q", a.q},
          {"q_out", a.q_out}};
}

void check_tensors(const Args& a) {
  required("k", a.k), required("v", a.v), required("k_cache", a.k_cache), required("v_cache", a.v_cache);
  for (const Named& one : tensors_of(a)) {
    if (one.tensor == nullptr) continue;
    check_tensor(one.name, *one.tensor);
    require_same_device(one.name, *one.tensor, *a.k, "k");
    for (int i = 0; i < one.tensor->rank; ++i)
      if (one.tensor->shape[i] > max_size)
        invalid(one.name, ".shape = ", shape_text(*one.tensor), ": sizes must be at most 2^40");
  }
}

// ---- New tokens and caches

void check_new(const Args& a) {
  constexpr const char* meaning = "[batch, heads_k, seqlen_new, dim], or 3, packed [total, heads_k, dim]";
  if (a.k->rank != 3 && a.k->rank != 4)
    invalid("k.rank = ", a.k->rank, " (shape ", shape_text(*a.k), "): must be 4, ", meaning);
  if (is_packed(a) && a.cu_seqlens_new == nullptr && a.slot_mapping == nullptr)
    invalid("k.rank = 3 (shape ", shape_text(*a.k), "): packed tokens need cu_seqlens_new or slot_mapping");
  if (!is_packed(a) && a.cu_seqlens_new != nullptr)
    invalid("cu_seqlens_new: given, but k has rank 4; packed k and v have rank 3");
  require_rank("v", *a.v, a.k->rank, "the rank of k");
  if (is_packed(a))
    require_shape("v", *a.v, {a.k->shape[0], a.k->shape[1], dim_of(*a.v)}, "[total, heads_k, dim_v]");
  else
    require_shape("v", *a.v, {a.k->shape[0], a.k->shape[1], a.k->shape[2], dim_of(*a.v)},
                  "[batch, heads_k, seqlen_new, dim_v]");
  for (const auto& [name, tensor] : {Named{"k", a.k}, Named{"v", a.v}}) {
    require_dtype(name, *tensor, {DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e5m2});
    if (dim_of(*tensor) == 0) invalid(name, ".shape = ", shape_text(*tensor), ": the head dim must be at least 1");
  }
}

void check_caches(const Args& a) {
  const rapt_tensor &k = *a.k_cache, &v = *a.v_cache;
  require_rank("k_cache", k, 4,
               is_paged(a) ? "[num_pages, heads_k, page_size, dim]" : "[batch_cache, heads_k, capacity, dim]");
  require_shape("k_cache", k, {k.shape[0], a.k->shape[1], k.shape[2], dim_of(*a.k)},
                "[pages or batch rows, k's heads_k, page_size or capacity, k's dim]");
  require_shape("v_cache", v, {k.shape[0], k.shape[1], k.shape[2], dim_of(*a.v)},
                "k_cache's shape with the head dim of v");
  if (!has_pages(a)) {
    if (a.cache_batch_idx == nullptr && k.shape[0] != batch_of(a))
      invalid("k_cache.shape = ", shape_text(k), ": must have ", batch_of(a),
              " batch rows, one for each sequence; cache_batch_idx can select rows of a larger cache");
    return;
  }
  if (k.shape[2] == 0 && k.shape[0] > 0)
    invalid("k_cache.shape = ", shape_text(k), ": the page size must be at least 1");
  if (k.shape[0] > 0 && k.shape[2] > max_rows / k.shape[0])
    invalid("k_cache.shape = ", shape_text(k),
            ": a cache with block_table or slot_mapping must have fewer than 2^31 rows");
}

// The word of a kind of descale: it is the same in C++ and Python.
const char* word_of(int32_t scales) { return scales == RAPT_SCALE_HEAD ? "head" : "token"; }

void check_cache_dtype(const char* name, const rapt_tensor& input, const char* cache_name, const rapt_tensor& cache,
                       const char* scales_name, int32_t scales) {
  const DType from = dtype_of(input), to = dtype_of(cache);
  require_dtype(cache_name, cache, {DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e5m2});
  if (scales == RAPT_SCALE_NONE) {
    if (from == to) return;
    if (is_fp8(to) && !is_fp8(from))
      invalid(cache_name, ".dtype = ", name_of(to), ": ", name, " is ", name_of(from), ", so ", scales_name,
              " must be head or token");
    invalid(cache_name, ".dtype = ", name_of(to), ": must be that of ", name, ", ", name_of(from),
            "; rapt converts only f32, f16 and bf16 to FP8");
  }
  if (scales != RAPT_SCALE_HEAD && scales != RAPT_SCALE_TOKEN)
    invalid(scales_name, " = ", scales, ": must be none, head or token");
  if (is_fp8(from))
    invalid(scales_name, " = ", word_of(scales), ": ", name, " is ", name_of(from),
            " already; FP8 is not quantised again");
  if (!is_fp8(to))
    invalid(scales_name, " = ", word_of(scales), ": ", cache_name, " is ", name_of(to),
            "; only FP8 caches have descales");
}

void check_descale(const Args& a, const char* name, const rapt_tensor* descale, const char* scales_name,
                   int32_t scales) {
  if (scales == RAPT_SCALE_NONE) {
    if (descale != nullptr) invalid(name, ": given without ", scales_name, "; give both or neither");
    return;
  }
  if (descale == nullptr) invalid(name, ": required with ", scales_name, " = ", word_of(scales));
  require_dtype(name, *descale, {DType::f32});
  const int64_t heads = a.k->shape[1], *cache = a.k_cache->shape;
  if (scales == RAPT_SCALE_HEAD)
    require_shape(name, *descale, {batch_of(a), heads}, "[batch, heads_k]");
  else if (has_pages(a))
    require_shape(name, *descale, {cache[0], cache[2], heads}, "[num_pages, page_size, heads_k]");
  else
    require_shape(name, *descale, {cache[0], heads, cache[2]}, "[batch_cache, heads_k, capacity]");
}

// ---- Places

void check_list(const char* name, const rapt_tensor* list, int64_t count, const char* meaning) {
  if (list == nullptr) return;
  require_dtype(name, *list, {DType::i32, DType::i64});
  require_shape(name, *list, {count}, meaning);
}
// slot_mapping and positions: a number for each token.
void check_token_list(const Args& a, const char* name, const rapt_tensor* list) {
  if (list == nullptr) return;
  if (is_packed(a)) return check_list(name, list, a.k->shape[0], "[total]");
  require_dtype(name, *list, {DType::i32, DType::i64});
  require_shape(name, *list, {a.k->shape[0], a.k->shape[2]}, "[batch, seqlen_new]");
}

void check_places(const Args& a) {
  const int sources = (a.seqused_k != nullptr) + (a.starts != nullptr) + (a.slot_mapping != nullptr);
  if (sources != 1) invalid("seqused_k, starts, slot_mapping: ", sources, " of them are given; give exactly one");
  if (a.cu_seqlens_new != nullptr) {
    require_rank("cu_seqlens_new", *a.cu_seqlens_new, 1, "[batch + 1]");
    require_dtype("cu_seqlens_new", *a.cu_seqlens_new, {DType::i32, DType::i64});
    if (a.cu_seqlens_new->shape[0] < 1) invalid("cu_seqlens_new.shape = [0]: must be [batch + 1], at least [1]");
  }
  check_list("seqused_k", a.seqused_k, batch_of(a), "[batch]");
  check_list("starts", a.starts, batch_of(a), "[batch]");
  check_token_list(a, "slot_mapping", a.slot_mapping);
  check_list("cache_batch_idx", a.cache_batch_idx, batch_of(a), "[batch]");
  if (a.cache_batch_idx != nullptr && has_pages(a))
    invalid("cache_batch_idx: given with ", is_paged(a) ? "block_table" : "slot_mapping",
            "; it selects batch rows of a dense cache");
  if (!is_paged(a)) return;
  if (a.slot_mapping != nullptr) invalid("block_table: given with slot_mapping, which names the pages itself");
  require_dtype("block_table", *a.block_table, {DType::i32});
  require_rank("block_table", *a.block_table, 2, "[batch, pages]");
  require_shape("block_table", *a.block_table, {batch_of(a), a.block_table->shape[1]}, "[batch, pages]");
}

// ---- Rotary embedding

void check_rotary(const Args& a) {
  if ((a.cos == nullptr) != (a.sin == nullptr))
    invalid(a.cos == nullptr ? "sin: given without cos" : "cos: given without sin", "; give both or neither");
  check_token_list(a, "positions", a.positions);
  if (a.cos == nullptr) {
    if (a.positions != nullptr) invalid("positions: given without cos and sin; they are the positions of the rotation");
    return;
  }
  require_rank("cos", *a.cos, 2, "[positions, rotary_dim / 2]");
  require_dtype("cos", *a.cos, {DType::f32, DType::f16, DType::bf16});
  require_shape("sin", *a.sin, {a.cos->shape[0], a.cos->shape[1]}, "that of cos");
  require_dtype("sin", *a.sin, {dtype_of(*a.cos)});
  if (a.cos->shape[1] < 1 || 2 * a.cos->shape[1] > dim_of(*a.k))
    invalid("cos.shape = ", shape_text(*a.cos), ": must be [positions, rotary_dim / 2] with rotary_dim from 2 to ",
            dim_of(*a.k), ", the head dim of k");
  if (is_fp8(dtype_of(*a.k))) invalid("k.dtype = ", name_of(dtype_of(*a.k)), ": FP8 cannot be rotated (cos is given)");
  if (a.slot_mapping != nullptr && a.positions == nullptr)
    invalid("positions: required with cos and slot_mapping, because slots do not give positions");
}

void check_queries(const Args& a) {
  if ((a.q == nullptr) != (a.q_out == nullptr))
    invalid(a.q == nullptr ? "q_out: given without q" : "q: given without q_out", "; give both or neither");
  if (a.q == nullptr) return;
  if (a.cos == nullptr) invalid("q: given without cos and sin; rapt_kv_append only rotates q");
  require_dtype("q", *a.q, {DType::f32, DType::f16, DType::bf16});
  require_rank("q", *a.q, a.k->rank, is_packed(a) ? "packed [total, heads_q, dim]" : "[batch, heads_q, seqlen_q, dim]");
  const bool as_k = a.positions != nullptr || is_packed(a);  // tokens of q are tokens of k
  if (has_flag(a, RAPT_KV_APPEND_Q_AT_START) && a.positions != nullptr) invalid("q_at_start: given with positions");
  if (is_packed(a))
    require_shape("q", *a.q, {a.k->shape[0], a.q->shape[1], dim_of(*a.k)}, "[k's total, heads_q, k's dim]");
  else
    require_shape(
        "q", *a.q, {a.k->shape[0], a.q->shape[1], as_k ? a.k->shape[2] : a.q->shape[2], dim_of(*a.k)},
        as_k ? "[batch, heads_q, seqlen_new, k's dim] with positions" : "[batch, heads_q, seqlen_q, k's dim]");
  require_dtype("q_out", *a.q_out, {dtype_of(*a.q)});
  if (is_packed(a))
    require_shape("q_out", *a.q_out, {a.q->shape[0], a.q->shape[1], a.q->shape[2]}, "that of q");
  else
    require_shape("q_out", *a.q_out, {a.q->shape[0], a.q->shape[1], a.q->shape[2], a.q->shape[3]}, "that of q");
}

// ---- Memory

// Returns whether the same view of the same memory is given twice. Strides of sizes below 2 do not count.
bool is_same_view(const rapt_tensor& a, const rapt_tensor& b) {
  const auto as = strides_of(a), bs = strides_of(b);
  for (int i = 0; i < a.rank; ++i)
    if (a.shape[i] > 1 && as[static_cast<size_t>(i)] != bs[static_cast<size_t>(i)]) return false;
  return a.data == b.data;
}

void check_memory(const Args& a) {
  const std::vector<Named> tensors = tensors_of(a);
  const auto is_output = [&](const rapt_tensor* t) {
    return t == a.k_cache || t == a.v_cache || t == a.q_out || (t == a.k_descale && a.k_scales == RAPT_SCALE_TOKEN) ||
           (t == a.v_descale && a.v_scales == RAPT_SCALE_TOKEN);
  };
  for (const Named& one : tensors) {
    if (one.tensor == nullptr || !is_output(one.tensor)) continue;
    check_output_layout(one.name, *one.tensor);
    const Bytes bytes(one.name, *one.tensor);
    for (const Named& other : tensors) {
      if (other.tensor == nullptr || other.name == one.name) continue;
      const bool in_place = one.tensor == a.q_out && other.name[0] == 'q' && is_same_view(*a.q, *a.q_out);
      if (!in_place) bytes.check_disjoint(other.name, *other.tensor);
    }
  }
}

// ---- Parameters

// Strides of sizes below 2 become 0, so that they cannot prevent vector loads.
void set_tensor(TensorRef& ref, const rapt_tensor& t) {
  auto s = strides_of(t);
  for (int i = 0; i < t.rank - 1; ++i)
    if (t.shape[i] < 2) s[static_cast<size_t>(i)] = 0;
  if (t.shape[t.rank - 1] < 2) s[static_cast<size_t>(t.rank - 1)] = 1;
  ref = t.rank == 4 ? TensorRef{t.data, dtype_of(t), s[0], s[1], s[2], s[3]}
                    : TensorRef{t.data, dtype_of(t), 0, s[1], s[0], s[2]};
}

IndexRef list_of(const rapt_tensor* t) {
  if (t == nullptr) return {};
  return {t->data, strides_of(*t)[0], 0, dtype_of(*t) == DType::i64};
}
IndexRef token_list_of(const rapt_tensor* t) {
  if (t == nullptr) return {};
  const auto s = strides_of(*t);
  return {t->data, t->rank == 2 ? s[0] : 0, t->rank == 2 ? s[1] : s[0], dtype_of(*t) == DType::i64};
}

AppendScales scales_of(const rapt_tensor* t, int32_t kind, bool pages) {
  if (t == nullptr) return {};
  const auto s = strides_of(*t);
  AppendScales scales{static_cast<float*>(t->data), s[0], s[1], 0, static_cast<ScaleKind>(kind)};
  if (kind == RAPT_SCALE_TOKEN) scales.head = s[pages ? 2 : 1], scales.position = s[pages ? 1 : 2];
  return scales;
}

RotaryTables tables_of(const Args& a) {
  if (a.cos == nullptr) return {};
  const auto c = strides_of(*a.cos), s = strides_of(*a.sin);
  return {a.cos->data,
          a.sin->data,
          dtype_of(*a.cos),
          c[0],
          c[1],
          s[0],
          s[1],
          a.cos->shape[0],
          2 * a.cos->shape[1],
          has_flag(a, RAPT_KV_APPEND_INTERLEAVED)};
}

}  // namespace

void check_kv_append(const rapt_kv_append_args& args, void* stream) {
  check_struct_size("args", args.struct_size, &args, sizeof args);
  check_options(args);
  check_tensors(args);
  check_new(args);
  check_places(args);
  check_caches(args);
  check_cache_dtype("k", *args.k, "k_cache", *args.k_cache, "k_scales", args.k_scales);
  check_cache_dtype("v", *args.v, "v_cache", *args.v_cache, "v_scales", args.v_scales);
  check_descale(args, "k_descale", args.k_descale, "k_scales", args.k_scales);
  check_descale(args, "v_descale", args.v_descale, "v_scales", args.v_scales);
  check_rotary(args);
  check_queries(args);
  check_memory(args);
  if (args.k->device.type == RAPT_DEVICE_CUDA) return;
  if (args.k->device.index != 0) invalid("k.device.index = ", args.k->device.index, ": the CPU has index 0 only");
  if (stream != nullptr) invalid("stream = ", stream, ": must be NULL for CPU tensors");
}

KvAppendParams kv_append_params(const rapt_kv_append_args& a) {
  KvAppendParams p;
  set_tensor(p.k, *a.k), set_tensor(p.v, *a.v), set_tensor(p.k_cache, *a.k_cache), set_tensor(p.v_cache, *a.v_cache);
  p.packed = is_packed(a);
  p.batch = batch_of(a), p.heads_k = a.k->shape[1], p.dim = dim_of(*a.k), p.dim_v = dim_of(*a.v);
  (p.packed ? p.total : p.seqlen) = tokens_of(*a.k);
  if (a.q != nullptr) {
    set_tensor(p.q, *a.q), set_tensor(p.q_out, *a.q_out);
    p.heads_q = a.q->shape[1], p.seqlen_q = p.packed ? 0 : tokens_of(*a.q);
    p.q_at_start = has_flag(a, RAPT_KV_APPEND_Q_AT_START);
  }
  p.cu_seqlens = list_of(a.cu_seqlens_new), p.starts = list_of(a.seqused_k != nullptr ? a.seqused_k : a.starts);
  p.slots = token_list_of(a.slot_mapping), p.positions = token_list_of(a.positions);
  p.batch_idx = list_of(a.cache_batch_idx);
  p.pages = a.k_cache->shape[0], p.page_rows = a.k_cache->shape[2], p.sequence_rows = p.page_rows;
  if (has_pages(a)) p.page_size = FastDivmod::by(static_cast<unsigned>(std::max<int64_t>(p.page_rows, 1)));
  if (is_paged(a)) {
    const auto s = strides_of(*a.block_table);
    p.block_table = static_cast<const int*>(a.block_table->data);
    p.table_batch = s[0], p.table_column = s[1];
    const int64_t pages = a.block_table->shape[1];
    p.sequence_rows = p.page_rows == 0 || pages <= max_rows / p.page_rows ? pages * p.page_rows : max_rows;
  }
  p.k_scales = scales_of(a.k_descale, a.k_scales, has_pages(a));
  p.v_scales = scales_of(a.v_descale, a.v_scales, has_pages(a));
  p.rotary = tables_of(a);
  return p;
}

}  // namespace rapt
