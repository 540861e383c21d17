// KvAppendParams: the parameters of one rapt_kv_append call, for CPU and GPU. Also the place of a token in the cache,
// and the arithmetic of rotary embeddings, which must give the same bits on both. Filled by kv_append_rules.cpp.
// Includes nothing outside shared/.
#pragma once

#include "quantize.h"

namespace rapt {

// A list or matrix of integers in the memory of the tensors' device: lengths, starts, slots, positions.
struct IndexRef {
  const void* data = nullptr;
  index_t row = 0, column = 0;  // strides in elements
  bool wide = false;            // i64, else i32

  constexpr bool present() const { return data != nullptr; }
  index_t at(index_t r, index_t c = 0) const {
    const index_t i = r * row + c * column;
    return wide ? static_cast<index_t>(static_cast<const long long*>(data)[i]) : static_cast<const int*>(data)[i];
  }
};

// Descales of new tokens. head: input, for sequence b (position is then 0). token: output, for batch row or page b.
struct AppendScales {
  float* data = nullptr;
  index_t batch = 0, head = 0, position = 0;  // strides
  ScaleKind kind = ScaleKind::none;

  constexpr float* at(index_t b, index_t h, index_t s) const { return data + b * batch + h * head + s * position; }
};

// cos and sin: [positions, rotary_dim / 2].
struct RotaryTables {
  const void *cos = nullptr, *sin = nullptr;
  DType dtype = DType::none;                                         // none: no rotary embedding
  index_t cos_row = 0, cos_column = 0, sin_row = 0, sin_column = 0;  // strides
  index_t positions = 0;
  index_t rotary_dim = 0;  // channels that are rotated; even
  bool interleaved = false;

  constexpr bool present() const { return dtype != DType::none; }
};

// The heads of k, v or q: in groups of `heads`. A thread processes the heads of one group. Set by kv_append_launch().
struct AppendGroups {
  int heads = 1;
  int count = 0;
};

struct KvAppendParams {
  TensorRef k, v;              // new rows. Packed: batch stride 0
  TensorRef k_cache, v_cache;  // `batch` is the stride of pages or batch rows
  TensorRef q, q_out;          // dtype none: absent
  index_t batch = 0, heads_k = 0, heads_q = 0, dim = 0, dim_v = 0;
  index_t seqlen = 0, seqlen_q = 0;  // dense: tokens of each sequence
  index_t total = 0;                 // packed rows
  bool packed = false;
  bool q_at_start = false;
  IndexRef cu_seqlens;  // packed; absent: all rows are one sequence
  IndexRef starts;      // seqused_k or starts
  IndexRef slots;       // instead of starts
  IndexRef positions;   // rotary positions; absent: those of the cache
  IndexRef batch_idx;
  const int* block_table = nullptr;
  index_t table_batch = 0, table_column = 0;  // strides
  index_t sequence_rows = 0;                  // rows that a sequence can have: the capacity, or that of its pages
  index_t pages = 0, page_rows = 0;           // of the cache; dense: batch rows and capacity
  FastDivmod page_size;                       // page_rows, with a block table or slots
  FastDivmod seqlen_divmod, seqlen_q_divmod;  // GPU, dense
  AppendScales k_scales, v_scales;
  RotaryTables rotary;
  AppendGroups k_groups, v_groups, q_groups;  // GPU

  constexpr bool has_q() const { return q.dtype != DType::none; }
};

// A token of the call. row: its index along the token dimension of k, v and q. i: its index in sequence b.
struct NewToken {
  index_t b = 0, row = 0, i = 0;
  bool exists = false;
};
constexpr NewToken dense_token(index_t b, index_t i) { return {b, i, i, true}; }

// Returns packed row t. Finds its sequence by binary search. cu_seqlens is not validated on a GPU.
inline NewToken packed_token(const KvAppendParams& p, index_t t) {
  if (!p.cu_seqlens.present()) return {0, t, t, true};
  index_t low = 0, high = p.batch;  // the sequence is in [low, high)
  if (high == 0) return {0, t, 0, false};
  while (high - low > 1) {
    const index_t middle = low + (high - low) / 2;
    if (p.cu_seqlens.at(middle) <= t)
      low = middle;
    else
      high = middle;
  }
  const index_t first = p.cu_seqlens.at(low);
  return {low, t, t - first, first <= t && t < p.cu_seqlens.at(low + 1)};
}

constexpr index_t most_position = index_t{1} << 60;
inline index_t start_of(const KvAppendParams& p, index_t b) {
  return clamped(p.starts.at(b), -most_position, most_position);
}
// Returns the rotary position of a token of k, or of q.
inline index_t rotary_position(const KvAppendParams& p, const NewToken& token, bool of_q) {
  if (p.positions.present()) return p.positions.at(token.b, token.row);
  return start_of(p, token.b) + (of_q && p.q_at_start ? 0 : token.i);
}
constexpr bool in_tables(const KvAppendParams& p, index_t position) {
  return position >= 0 && position < p.rotary.positions;
}

// The row of the cache for a token: row `row` of page (or batch row) `page`. page = -1: none.
struct CachePlace {
  index_t page = -1, row = 0;
  constexpr bool present() const { return page >= 0; }
};
// Returns the place of a token. There is none if its position, slot, page or batch row is not in the cache.
inline CachePlace cache_place(const KvAppendParams& p, const NewToken& token) {
  if (p.slots.present()) {
    const index_t slot = p.slots.at(token.b, token.row);
    if (slot < 0 || slot >= p.pages * p.page_rows) return {};
    const index_t page = p.page_size.quotient(static_cast<unsigned>(slot));
    return {page, slot - page * p.page_rows};
  }
  const index_t position = start_of(p, token.b) + token.i;
  if (position < 0 || position >= p.sequence_rows) return {};
  index_t page = token.b, row = position;
  if (p.block_table != nullptr) {
    const index_t i = p.page_size.quotient(static_cast<unsigned>(position));
    page = p.block_table[token.b * p.table_batch + i * p.table_column];
    row = position - i * p.page_rows;
  } else if (p.batch_idx.present()) {
    page = p.batch_idx.at(token.b);
  }
  return page >= 0 && page < p.pages ? CachePlace{page, row} : CachePlace{};
}
// Returns the place of a token of k and v that will be written.
inline CachePlace written_place(const KvAppendParams& p, const NewToken& token) {
  if (!token.exists) return {};
  if (p.rotary.present() && !in_tables(p, rotary_position(p, token, false))) return {};
  return cache_place(p, token);
}

namespace appending {

// The NaN that rotated rows hold, since processors differ in the sign and payload of a NaN.
constexpr unsigned nan_bits = 0x7fc00000u;
constexpr unsigned nan_code(DType half) { return half == DType::f16 ? 0x7e00u : 0x7fc0u; }

// Rotates the pair (x, y). The products are rounded before they are added.
inline void rotate(float& x, float& y, float cos, float sin) {
  const float xc = quantizing::multiplied(x, cos), ys = quantizing::multiplied(y, sin);
  const float yc = quantizing::multiplied(y, cos), xs = quantizing::multiplied(x, sin);
  x = xc - ys;
  y = yc + xs;
}

}  // namespace appending
}  // namespace rapt
