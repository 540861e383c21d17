// Shared by the tile layouts (tile_wide.h, tile_narrow.h, tile_wide_bf16.h): the state of rows, scratch memory, tiles
// of K and V as floats. Included only through attention_tile.h by the isa_*.cpp units (internal linkage).
#pragma once

#include "cpu/attention_call.h"
#include "cpu/convert.h"
#include "cpu/simd.h"
#include "kernels/shared/kv_view.h"

namespace rapt::cpu {
namespace {

constexpr float minus_infinity = -__builtin_inff();

template <int i>
struct Index {
  static constexpr int value = i;
};

// Calls f(Index<0>) ... f(Index<n - 1>), always unrolled.
template <int n, int i = 0, class F>
[[gnu::always_inline]] inline void unroll(const F& f) {
  if constexpr (i < n) {
    f(Index<i>{});
    unroll<n, i + 1>(f);
  }
}

constexpr int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// The element offset of each row in a bias or mask. evenly_spaced: offsets are `step` apart.
struct BroadcastRows {
  int64_t offset[64];
  int64_t step = 0;
  bool evenly_spaced = true;
};

// Rows of K or V that the next step of a tile reads. While the narrow layout computes, it prefetches them to the L2
// cache, some cache lines at a time. A run is memory that rows fill without large gaps: one row, the rows of a page, or
// all rows of a dense tile. The hardware prefetcher loses a run at its end.
struct RowPrefetch {
  const void* const* runs = nullptr;
  int count = 0;          // runs that are left
  int64_t bytes = 0;      // of a run
  int64_t at = 0;         // in the current run
  int lines_at_once = 0;  // cache lines of one step

  // The lines are divided among `steps` steps.
  static RowPrefetch of(const void* const* runs, int count, int64_t bytes, int64_t steps) {
    const int64_t lines = count * ((bytes + 63) / 64);
    return {runs, count, bytes, 0, static_cast<int>((lines + steps - 1) / steps)};
  }
  void step() {
    for (int i = 0; i < lines_at_once && count > 0; ++i) {
      __builtin_prefetch(static_cast<const char*>(*runs) + at, 0, 2);
      at += 64;
      if (at < bytes) continue;
      at = 0, ++runs, --count;
    }
  }
};

// The rows of a tile: positions, and softmax state (running maximum and sum; rescale = exp(old maximum - new maximum)).
struct Rows {
  static constexpr int capacity = 64;
  int count = 0;
  int64_t query[capacity], head[capacity];
  KeyRange keys[capacity];                 // keys that pass position masks and lengths
  int32_t begin[capacity], end[capacity];  // the same within the current key tile
  int64_t distance[capacity];              // ALiBi: i + off - (first key of the tile); each term is below 2^60
  float slope[capacity];                   // ALiBi slope of the head
  BroadcastRows bias, mask;
  const char* prefetch_from[capacity];  // bias or mask of the current key tile, prefetch_bytes per row
  int64_t prefetch_bytes = 0;
  RowPrefetch next;  // the rows of K or V that the next step reads
  // smooth_k: scale * q . k_mean, an addend of every logit of the row.
  alignas(64) float mean_logit[capacity];
  alignas(64) float max[capacity], sum[capacity], rescale[capacity];
};

inline void init_rows(const AttentionParams& call, const Tile& tile, int block_m, Rows& rows) {
  rows.count = tile.rows;
  int64_t head = tile.head_q + tile.first_row / tile.seqlen_q, query = tile.first_row % tile.seqlen_q;
  for (int r = 0; r < block_m; ++r) {
    const bool live = r < tile.rows;  // lanes past the last row repeat the first row; their results are unused
    rows.head[r] = live ? head : rows.head[0];
    rows.query[r] = live ? query : rows.query[0];
    rows.keys[r] = call.position_mask.visible(rows.query[r], tile.offset, tile.seqlen_k);
    rows.slope[r] =
        call.alibi_slopes ? call.alibi_slopes[tile.batch * call.alibi_batch + rows.head[r] * call.alibi_head] : 0.0f;
    if (++query == tile.seqlen_q) {
      query = 0;
      ++head;
    }
  }
}

// Divides the rows into `parts` equal parts, and prefetches the bias or mask of the rows of parts first to end - 1.
inline void prefetch_bias_and_mask(const Rows& rows, int64_t first, int64_t end, int parts) {
  if (rows.prefetch_bytes == 0) return;
  for (int64_t r = first * rows.count / parts; r < end * rows.count / parts; ++r)
    for (int64_t at = 0; at < rows.prefetch_bytes; at += 64) __builtin_prefetch(rows.prefetch_from[r] + at);
}

struct KeyTile {
  int64_t first = 0;
  int count = 0;
  bool partial = false;  // true if some key of the tile is masked for some row
};

// A key tile of K or V: rows of 32-bit elements, in the tensor or in scratch.
struct Operand {
  const float* data = nullptr;
  int64_t stride = 0;
};

// The rows of K or V of a tile's sequence and kv head.
struct KeyRows {
  const AttentionParams& call;
  const Tile& tile;
  const PageTable& pages;
  KvView view;

  KeyRows(const AttentionParams& of_call, const Tile& of_tile, const TensorRef& t)
      : call(of_call),
        tile(of_tile),
        pages(call.pages),
        view(call, t, bytes_of(t.dtype), tile.batch, tile.head_k, tile.first_k) {}

  const char* base() const { return view.rows; }
  // The offset of key j from base(), in elements.
  int64_t offset(int64_t j) const {
    return pages.present() ? view.paged_row(pages, tile.batch, static_cast<int>(j)) : view.row(j);
  }
  // The descale of key j; if descales are per channel, that of channel 0.
  const float* descale(const ScaleRef& scale, int64_t j) const {
    return kv_descale(call, scale, tile.batch, tile.head_k, tile.first_k, j);
  }
  int64_t pitch() const { return view.pitch(); }
  // Returns whether rows follow each other in memory without large gaps: those of the sequence, or those of a page.
  bool are_adjacent(int64_t depth) const { return pitch() >= 0 && pitch() <= 2 * depth; }
  // Calls f(address of the first row, index of its key in the tile, number of keys) for the keys of each page. Rows of
  // a page are pitch() apart. Keys that are not paged count as one page.
  template <class F>
  void each_page(const KeyTile& keys, const F& f) const {
    const int size = pages.present() ? static_cast<int>(pages.page_size.value) : keys.count;
    int in_page = pages.present() ? static_cast<int>(keys.first % size) : 0;
    for (int n = 0, count = 0; n < keys.count; n += count, in_page = 0) {
      count = size - in_page < keys.count - n ? size - in_page : keys.count - n;
      f(base() + bytes_of(view.tensor.dtype) * offset(keys.first + n), n, count);
    }
  }
  // Writes the address of each row of a key tile.
  void write_addresses(const KeyTile& keys, const void** to) const {
    const int64_t step = bytes_of(view.tensor.dtype) * pitch();
    each_page(keys, [&](const char* row, int n, int count) {
      for (int i = 0; i < count; ++i) to[n + i] = row + i * step;
    });
  }
  // Returns whether the rows of the keys are pitch() apart: they are not paged, or in one page.
  bool are_even(const KeyTile& keys) const {
    if (!pages.present()) return true;
    const int64_t size = pages.page_size.value;
    return keys.first / size == (keys.first + keys.count - 1) / size;
  }
};

inline bool readable_in_place(const TensorRef& t, const ScaleRef& scale) {
  return t.dtype == DType::f32 && t.column == 1 && !scale.present();
}

// Converts the rows of a key tile to float in scratch, `padded` floats apart. Zeroes the padding, applies descales.
inline void widen_tile(const AttentionParams& call, const Tile& tile, const TensorRef& t, const ScaleRef& scale,
                       const KeyTile& keys, int64_t depth, int64_t padded, float* dst) {
  const bool by_channel = scale.channel != 0;
  const KeyRows rows(call, tile, t);
  for (int n = 0; n < keys.count; ++n) {
    float* row = dst + n * padded;
    const float* factor = scale.present() ? rows.descale(scale, keys.first + n) : nullptr;
    read_elements(t.dtype, rows.base(), rows.offset(keys.first + n), t.column, depth, row,
                  factor != nullptr && !by_channel ? *factor : 1.0f);
    for (int64_t d = depth; d < padded; ++d) row[d] = 0.0f;
    if (!by_channel) continue;
    for (int64_t d = 0; d < depth; ++d) row[d] *= factor[d * scale.channel];
  }
}

// NaN-safe path: replaces non-finite elements of V by 0, so that 0 * NaN cannot reach rows that do not see them.
// Returns whether there were such elements. add_nonfinite_v() adds them to the rows that see their keys.
inline bool sanitize(int count, int64_t depth, int64_t stride, float* v) {
  bool any = false;
  for (int n = 0; n < count; ++n) {
    for (int64_t c = 0; c < depth; ++c) {
      if (is_finite(v[n * stride + c])) continue;
      v[n * stride + c] = 0.0f;
      any = true;
    }
  }
  return any;
}

// Reads one query row as float and applies its descale.
inline void read_query(const AttentionParams& call, const Tile& tile, int64_t head, int64_t query, float* dst) {
  const float factor = call.q_scale.present() ? *call.q_scale.at(tile.batch, head, tile.first_q, query) : 1.0f;
  read_row(call.q, tile.batch, head, tile.first_q + query, call.head_dim, dst, factor);
}

// Channel d of k_mean.
inline float key_mean(const AttentionParams& call, const Tile& tile, int64_t d) {
  return call.k_mean[tile.batch * call.k_mean_batch + tile.head_k * call.k_mean_head + d * call.k_mean_channel];
}

// K or V of a key tile as floats: in place, or converted into scratch.
inline Operand float_operand(const AttentionParams& call, const Tile& tile, const TensorRef& t, const ScaleRef& scale,
                             const KeyTile& keys, int64_t depth, bool in_place, float* scratch) {
  const KeyRows rows(call, tile, t);
  if (in_place && rows.are_even(keys))
    return {reinterpret_cast<const float*>(rows.base()) + rows.offset(keys.first), rows.pitch()};
  const int64_t padded = round_up(depth, 16);
  widen_tile(call, tile, t, scale, keys, depth, padded, scratch);
  return {scratch, padded};
}

// The scratch arrays of one thread, in one allocation.
struct Scratch {
  float *q, *scores, *masked_scores, *pairs, *k, *v, *o, *row;
  const void **key_rows, **next_rows;  // addresses of the rows of key tiles

  static constexpr int64_t floats_of_address = sizeof(void*) / sizeof(float);
  static constexpr int rows_at_once = 16;  // rows of q and o that are transposed together: one cache line of the result

  static int64_t align(int64_t floats) { return round_up(floats, 16); }
  static int64_t floats(const AttentionParams& call, int block_m) {
    const int64_t d = align(call.head_dim), dv = align(call.head_dim_v), n = call.block_n;
    return d * block_m + 3 * align(n * block_m) + n * d + n * dv + dv * block_m + rows_at_once * (d > dv ? d : dv) +
           2 * align(n * floats_of_address);
  }
  Scratch(const AttentionParams& call, int block_m, void* memory) {
    const int64_t d = align(call.head_dim), dv = align(call.head_dim_v), n = call.block_n;
    float* next = static_cast<float*>(memory);
    auto take = [&](int64_t count) {
      float* p = next;
      next += align(count);
      return p;
    };
    q = take(d * block_m);
    scores = take(n * block_m);
    masked_scores = take(n * block_m);
    pairs = take(n * block_m);
    k = take(n * d);
    v = take(n * dv);
    o = take(dv * block_m);
    row = take(rows_at_once * (d > dv ? d : dv));
    key_rows = reinterpret_cast<const void**>(take(n * floats_of_address));
    next_rows = reinterpret_cast<const void**>(take(n * floats_of_address));
  }
};

}  // namespace
}  // namespace rapt::cpu
