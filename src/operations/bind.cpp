// Converts tensors to raw addresses and strides, for all backends.
#include "operations/bind.h"

#include <algorithm>
#include <type_traits>

#include "arguments/tensor_rules.h"
#include "problem/problem.h"

namespace rapt {
namespace {

static_assert(std::is_same_v<index_t, int64_t>, "shared/params.h counts in int64_t");

TensorRef tensor_ref(const rapt_tensor& t, bool packed) {
  const auto s = strides_of(t);
  const auto dtype = static_cast<DType>(t.dtype);
  if (packed) return {t.data, dtype, 0, s[1], s[0], s[2]};
  return {t.data, dtype, s[0], s[1], s[2], s[3]};
}

PageTable page_table(const rapt_sdpa_args& a) {
  const auto s = strides_of(*a.block_table);
  return {
      static_cast<const int*>(a.block_table->data), s[0], s[1],
      FastDivmod::by(static_cast<unsigned>(std::min<int64_t>(a.k->shape[2], INT32_MAX))),
      static_cast<int>(std::max<int64_t>(a.k->shape[0], 1))};  // 0 would mean: not paged. Without pages no key is read
}

TensorRef lse_ref(const rapt_tensor& t, bool packed) {
  const auto s = strides_of(t);
  if (packed) return {t.data, DType::f32, 0, s[0], s[1], 0};
  return {t.data, DType::f32, s[0], s[1], s[2], 0};
}

BroadcastRef broadcast_ref(const rapt_tensor* t) {
  if (t == nullptr) return {};
  const auto s = strides_of(*t);
  index_t stride[max_rank] = {0, 0, 0, 0};
  for (int i = 0; i < t->rank; ++i) stride[max_rank - t->rank + i] = t->shape[i] == 1 ? 0 : s[i];
  return {t->data, static_cast<DType>(t->dtype), stride[0], stride[1], stride[2], stride[3]};
}

// The layout of the rows that descales belong to.
enum class RowLayout { dense, packed, paged };

ScaleRef scale_ref(const rapt_tensor* t, ScaleKind kind, RowLayout layout) {
  if (t == nullptr) return {};
  const auto s = strides_of(*t);
  ScaleRef ref;
  ref.data = static_cast<const float*>(t->data);
  ref.rows = rows_sharing(kind);
  switch (kind) {
    case ScaleKind::none:
    case ScaleKind::tensor: break;
    case ScaleKind::head: ref.batch = s[0], ref.head = s[1]; break;
    case ScaleKind::token:
      ref.packed_rows = layout == RowLayout::packed;
      switch (layout) {
        case RowLayout::dense: ref.batch = s[0], ref.head = s[1], ref.position = s[2]; break;
        case RowLayout::packed: ref.head = s[0], ref.position = s[1]; break;
        case RowLayout::paged: ref.batch = s[0], ref.position = s[1], ref.head = s[2]; break;
      }
      break;
    case ScaleKind::block64:
    case ScaleKind::block128: ref.batch = s[0], ref.head = s[1], ref.position = s[2]; break;
    case ScaleKind::channel: ref.batch = s[0], ref.head = s[1], ref.channel = s[2]; break;
  }
  return ref;
}

template <class T>
ListRef<T> list_ref(const rapt_tensor* t) {
  if (t == nullptr) return {};
  return {static_cast<const T*>(t->data), strides_of(*t)[0]};
}

void bind_lengths(const rapt_sdpa_args& a, const Problem& p, AttentionParams& params) {
  params.batch = p.batch, params.heads_q = p.heads_q, params.group = p.group();
  params.by_group = FastDivmod::by(static_cast<unsigned>(std::max<int64_t>(p.group(), 1)));
  params.seqlen_q = p.seqlen_q, params.seqlen_k = p.seqlen_k, params.total_q = p.total_q, params.total_k = p.total_k;
  params.cu_seqlens_q = list_ref<int>(a.cu_seqlens_q), params.cu_seqlens_k = list_ref<int>(a.cu_seqlens_k);
  params.seqused_q = list_ref<int>(a.seqused_q), params.seqused_k = list_ref<int>(a.seqused_k);
  params.q_starts = list_ref<index_t>(a.q_starts), params.k_starts = list_ref<index_t>(a.k_starts);
  params.q_start = (a.has & RAPT_HAS_Q_START) != 0 ? a.q_start : 0;
  params.k_start = (a.has & RAPT_HAS_K_START) != 0 ? a.k_start : 0;
  params.has_starts = p.has_starts;
}

void bind_scores(const rapt_sdpa_args& a, const Problem& p, AttentionParams& params) {
  params.bias = broadcast_ref(a.bias), params.mask = broadcast_ref(a.mask);
  if (a.alibi_slopes != nullptr) {
    const auto s = strides_of(*a.alibi_slopes);
    params.alibi_slopes = static_cast<const float*>(a.alibi_slopes->data);
    params.alibi_batch = p.alibi_per_batch ? s[0] : 0, params.alibi_head = p.alibi_per_batch ? s[1] : s[0];
  }
  if (a.sinks != nullptr)
    params.sinks = static_cast<const float*>(a.sinks->data), params.sinks_head = strides_of(*a.sinks)[0];
  params.scale = p.softmax_scale();
  params.softcap = p.softcap.value_or(0.0f);
  if (p.softcap) params.tanh = TanhTerms(soft_cap_factor(params));
  params.position_mask = p.position_mask;
}

}  // namespace

AttentionParams attention_params(const rapt_sdpa_args& a, const Problem& p) {
  AttentionParams params;
  const bool paged = a.block_table != nullptr, packed_keys = p.varlen && !paged;
  params.q = tensor_ref(*a.q, p.varlen);
  params.k = tensor_ref(*a.k, packed_keys), params.v = tensor_ref(*a.v, packed_keys);
  if (paged) params.pages = page_table(a);
  params.out = tensor_ref(*a.out, p.varlen);
  if (a.lse != nullptr) params.lse = lse_ref(*a.lse, p.varlen);
  const RowLayout queries = p.varlen ? RowLayout::packed : RowLayout::dense;
  const RowLayout keys = paged ? RowLayout::paged : queries;
  params.q_scale = scale_ref(a.q_descale, p.q_scales, queries);
  params.k_scale = scale_ref(a.k_descale, p.k_scales, keys);
  params.v_scale = scale_ref(a.v_descale, p.v_scales, keys);
  if (a.k_mean != nullptr) {
    const auto s = strides_of(*a.k_mean);
    params.k_mean = static_cast<const float*>(a.k_mean->data);
    params.k_mean_batch = s[0], params.k_mean_head = s[1], params.k_mean_channel = s[2];
  }
  params.head_dim = p.head_dim, params.head_dim_v = p.head_dim_v;
  bind_lengths(a, p, params);
  bind_scores(a, p, params);
  return params;
}

}  // namespace rapt
