// attention_scalar: every legal problem on every GPU, in f32 arithmetic on the ordinary cores. A warp owns a few query
// rows; keys come in tiles of 32 through shared memory: for scores a lane is a key, for P.V a lane is a channel.
// Online softmax (Milakov & Gimelshein 2018) by docs/semantics.md. Host half: attention_scalar.cpp. Assumes nothing of
// strides, sizes or contents; the text also runs on a CPU (lab/emulation).
#pragma once

#include "device/numeric.cuh"
#include "device/score.cuh"
#include "scalar_tile.h"
#include "shared/key_tiles.h"
#include "shared/kv_view.h"

namespace rapt {
namespace scalar {

constexpr float minus_infinity = detail::float_of(0xff800000u);
constexpr float log2_e = 1.4426950408889634f;
constexpr unsigned all_lanes = 0xffffffffu;

inline float warp_max(float x) {  // of numbers; NaN counts as none
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(all_lanes, x, step));
  return x;
}

inline float warp_sum(float x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(all_lanes, x, step);
  return x;
}

// e^(x - shift); 0 for x = -inf. A shift of -inf (no key yet) must have become 0.
inline float exp_from(float x, float shift) { return exp2_approx((x - shift) * log2_e); }
inline float finite_shift(float max) { return max == minus_infinity ? 0.0f : max; }

struct ExactTanh {
  static float of(float x) { return tanhf(x); }
};

inline float nearest_e4m3(float x) { return e4m3_to_f32(static_cast<unsigned char>(pack_e4m3x2(x, 0.0f))); }

// A weight in [0, 1] as `terms` E4M3 numbers hold 256 times it: one, or a second of what the first left.
template <int terms>
inline float rounded_weight(float w) {
  constexpr float headroom = 256.0f;
  const float high = nearest_e4m3(w * headroom);
  if constexpr (terms == 1) return high * (1.0f / headroom);
  return (high + nearest_e4m3(fmaf(w, headroom, -high))) * (1.0f / headroom);
}

// The values of a warp's rows for one key or one dimension, read at once.
template <int rows>
struct alignas(rows == 4 ? 16 : 4) RowValues {
  float x[rows];
};

// The rows of one thread block: block_m queries of one head, and the channels of its output that it computes. Rows that
// seqused_q leaves unused are among them: they see no key and are stored like any row that sees none.
struct Tile {
  index_t batch = 0, head = 0, first_row = 0, first_channel = 0;
  Sequence sequence;
  int used = 0, stored = 0;  // its first rows: those of queries in use, those with an output
  bool empty() const { return first_row < 0 || stored == 0; }
};

inline index_t first_slot(const AttentionParams& p, int block_m, index_t b) {
  return clamped(p.cu_seqlens_q[b], 0, p.total_q) / block_m + b;
}

// The last sequence whose tiles begin at or before this one.
inline index_t sequence_of_slot(const AttentionParams& p, int block_m, index_t slot) {
  index_t low = 0, high = p.batch;
  while (high - low > 1) {
    const index_t middle = low + (high - low) / 2;
    (first_slot(p, block_m, middle) <= slot ? low : high) = middle;
  }
  return low;
}

template <ScalarConfig cfg>
inline Tile tile_of(const AttentionParams& p, index_t item) {
  const index_t slices = scalar_slices(p, cfg.head_dim_v), slots = scalar_row_tiles(p, cfg.block_m);
  Tile t;
  t.first_channel = item % slices * cfg.head_dim_v;
  item /= slices;
  if (p.cu_seqlens_q.present()) {
    const index_t slot = item % slots;
    t.head = item / slots;
    t.batch = sequence_of_slot(p, cfg.block_m, slot);
    t.first_row = (slot - first_slot(p, cfg.block_m, t.batch)) * cfg.block_m;
  } else {
    const index_t tiles = slots / p.batch;
    t.first_row = (tiles - 1 - item % tiles) * cfg.block_m;  // late rows first: under causal masks they are the longest
    t.head = item / tiles % p.heads_q;
    t.batch = item / tiles / p.heads_q;
  }
  t.sequence = sequence_of(p, t.batch);
  t.used = static_cast<int>(clamped(t.sequence.seqlen_q - t.first_row, 0, cfg.block_m));
  t.stored = static_cast<int>(clamped(t.sequence.rows_q - t.first_row, 0, cfg.block_m));
  return t;
}

// Part of a tensor to be staged: rows first_row .. of one sequence and head, columns first_column .., of which
// `rows` and `columns` exist. The rows of queries lie as those of keys do.
struct Part {
  index_t batch, head, first_packed, first_row, first_column, rows, columns;
};

// Copies a part to shared memory as descaled floats, at row * row_pitch + column * column_pitch; what does not exist
// becomes 0.
template <DType dtype, int rows, int columns, int threads>
inline void stage(const TensorRef& t, const ScaleRef& scale, const Part& part, int row_pitch, int column_pitch,
                  float* to) {
  for (int e = static_cast<int>(threadIdx.x); e < rows * columns; e += threads) {
    const int row = e / columns, column = e % columns;
    float x = 0.0f;
    if (row < part.rows && column < part.columns) {
      const index_t s = part.first_row + row, c = part.first_column + column;
      x = load_element<dtype>(t.data, kv_row(t, part.batch, part.head, part.first_packed, s) + c * t.column);
      if constexpr (is_fp8(dtype)) {
        if (scale.present()) x *= scale.at(part.batch, part.head, part.first_packed, s)[c * scale.channel];
      }
    }
    to[row * row_pitch + column * column_pitch] = x;
  }
}

// One thread's share of a tile.
template <ScalarConfig cfg>
struct Block {
  static constexpr ScalarTile layout{cfg};
  static constexpr int rows = layout.rows, channels = cfg.head_dim_v / 32;  // of a warp; of a lane
  static_assert(cfg.block_n == 32, "a lane is a key");
  static_assert(cfg.block_m % cfg.warps_m == 0 && cfg.head_dim_v % 32 == 0);

  const AttentionParams& p;
  const Tile& tile;
  float* const q;        // [head_dim][q_pitch]
  float* const weights;  // [block_n][rows], this warp's
  float* const keys;     // a tile of K, then of V
  const int lane, warp;
  const index_t head_k;

  index_t row[rows];  // its queries
  KeyRange visible[rows];
  float max[rows], o[rows][channels];
  float sum[rows];           // of this lane's keys alone
  unsigned seen[rows] = {};  // keys of the tile that a row sees, a bit each
  float rescale[rows] = {};
  float shift[rows] = {};  // scale * q . (mean of the keys), of smoothed keys

  Block(const AttentionParams& params, const Tile& t, float* shared)
      : p(params),
        tile(t),
        q(shared),
        weights(shared + layout.weights + static_cast<int>(threadIdx.x) / 32 * rows * cfg.block_n),
        keys(shared + layout.keys),
        lane(static_cast<int>(threadIdx.x) % 32),
        warp(static_cast<int>(threadIdx.x) / 32),
        head_k(t.head / params.group) {
    for (int r = 0; r < rows; ++r) {
      row[r] = tile.first_row + warp * rows + r;
      if (warp * rows + r < tile.used) visible[r] = keys_of(row[r]);
      max[r] = minus_infinity;
      sum[r] = 0.0f;
      for (int c = 0; c < channels; ++c) o[r][c] = 0.0f;
    }
  }

  void attend() {
    const KeyTiles<long long> tiles = keys_of_block();
    const index_t begin = tiles.first(cfg.block_n) * cfg.block_n;
    for (index_t first = begin; first < tiles.some.end; first += cfg.block_n) {
      float dot[rows];
      dot_products(first, first == begin, dot);
      softmax(first, dot);
      __syncthreads();  // scores are taken from K; weights are written
      stage_values(first);
      __syncthreads();
      add_values();
    }
    for (int r = 0; r < rows; ++r)
      if (warp * rows + r < tile.stored) store(r);
    __syncthreads();  // the next tile of this block begins with the shared memory
  }

  KeyRange keys_of(index_t i) const { return p.position_mask.visible(i, tile.sequence.offset, tile.sequence.seqlen_k); }

  // Every tile is masked key by key.
  KeyTiles<long long> keys_of_block() const {
    if (tile.used == 0) return {};  // only unused rows
    const KeyRange first = keys_of(tile.first_row), last = keys_of(tile.first_row + tile.used - 1);
    return KeyTiles<long long>::of_rows({first.begin, first.end}, {last.begin, last.end});
  }

  void stage_queries(index_t first_column) {
    const Part part{tile.batch,   tile.head, tile.sequence.first_q,    tile.first_row,
                    first_column, tile.used, p.head_dim - first_column};
    stage<cfg.q, cfg.block_m, cfg.head_dim, cfg.threads()>(p.q, p.q_scale, part, 1, layout.q_pitch, q);
  }
  void stage_keys(index_t first, index_t first_column) {
    const Part part{tile.batch,
                    head_k,
                    tile.sequence.first_k,
                    first,
                    first_column,
                    tile.sequence.seqlen_k - first,
                    p.head_dim - first_column};
    stage<cfg.k, cfg.block_n, cfg.head_dim, cfg.threads()>(p.k, p.k_scale, part, layout.k_pitch, 1, keys);
  }
  void stage_values(index_t first) {
    const Part part{tile.batch,
                    head_k,
                    tile.sequence.first_k,
                    first,
                    tile.first_channel,
                    tile.sequence.seqlen_k - first,
                    p.head_dim_v - tile.first_channel};
    stage<cfg.v, cfg.block_n, cfg.head_dim_v, cfg.threads()>(p.v, p.v_scale, part, cfg.head_dim_v, 1, keys);
  }

  // Products of the staged channels of Q with the keys' mean: a lane's channels, summed over lanes.
  void add_shifts(index_t first_column, int depth) {
    const float* mean = p.k_mean + tile.batch * p.k_mean_batch + head_k * p.k_mean_head;
    float part[rows] = {};
    for (int d = lane; d < depth; d += 32) {
      const float m = mean[(first_column + d) * p.k_mean_channel];
      const auto x = *reinterpret_cast<const RowValues<rows>*>(q + d * layout.q_pitch + warp * rows);
      for (int r = 0; r < rows; ++r) part[r] = fmaf(x.x[r], m, part[r]);
    }
    for (int r = 0; r < rows; ++r) shift[r] = fmaf(warp_sum(part[r]), p.scale, shift[r]);
  }

  // Dot products of the rows with this lane's key; head_dim in slices of the staged width.
  void dot_products(index_t first, bool first_tile, float (&dot)[rows]) {
    for (int r = 0; r < rows; ++r) dot[r] = 0.0f;
    for (index_t column = 0; column < p.head_dim; column += cfg.head_dim) {
      __syncthreads();  // nobody reads any more what lies there
      if (first_tile || p.head_dim > cfg.head_dim) stage_queries(column);
      stage_keys(first, column);
      __syncthreads();
      const int depth = static_cast<int>(clamped(p.head_dim - column, 0, cfg.head_dim));
      if constexpr (cfg.key_mean) {
        if (first_tile) add_shifts(column, depth);
      }
      float part[rows] = {};
      for (int d = 0; d < depth; ++d) {
        const float k = keys[lane * layout.k_pitch + d];
        const auto x = *reinterpret_cast<const RowValues<rows>*>(q + d * layout.q_pitch + warp * rows);
        for (int r = 0; r < rows; ++r) part[r] = fmaf(x.x[r], k, part[r]);
      }
      for (int r = 0; r < rows; ++r) dot[r] += part[r];
    }
  }

  // Turns dot products into weights, and moves the rows' maximum and sum on.
  void softmax(index_t first, const float (&dot)[rows]) {
    const index_t j = first + lane;
    RowValues<rows> weight;
    for (int r = 0; r < rows; ++r) {
      float x = minus_infinity;
      if (j >= visible[r].begin && j < visible[r].end)
        x = RowScoreChain<cfg, ExactTanh>(p, p.scale, shift[r], tile.sequence.offset, tile.batch, tile.head, row[r])
                .logit(dot[r], j);
      seen[r] = __ballot_sync(all_lanes, x != minus_infinity);
      weight.x[r] = 0.0f;
      if (seen[r] == 0) continue;  // the row keeps its bits
      const float new_max = fmaxf(max[r], warp_max(x)), from = finite_shift(new_max);
      weight.x[r] = exp_from(x, from);
      rescale[r] = exp_from(max[r], from);
      sum[r] = fmaf(sum[r], rescale[r], weight.x[r]);
      max[r] = new_max;
      if constexpr (cfg.p_terms > 0) weight.x[r] = rounded_weight<cfg.p_terms>(weight.x[r]);
    }
    *reinterpret_cast<RowValues<rows>*>(weights + lane * rows) = weight;
  }

  // Adds the tile's weighted values, summed by themselves first. Values of keys that a row does not see are left out,
  // not multiplied by 0: they may be NaN.
  void add_values() {
    float part[rows][channels] = {};
    for (int j = 0; j < cfg.block_n; ++j) {
      float v[channels];
      for (int c = 0; c < channels; ++c) v[c] = keys[j * cfg.head_dim_v + c * 32 + lane];
      const auto weight = *reinterpret_cast<const RowValues<rows>*>(weights + j * rows);
      for (int r = 0; r < rows; ++r) {
        if ((seen[r] >> j & 1u) == 0) continue;
        for (int c = 0; c < channels; ++c) part[r][c] = fmaf(weight.x[r], v[c], part[r][c]);
      }
    }
    for (int r = 0; r < rows; ++r) {
      if (seen[r] == 0) continue;
      for (int c = 0; c < channels; ++c) o[r][c] = fmaf(o[r][c], rescale[r], part[r][c]);
    }
  }

  // Without a soft cap the keys' mean moves all logits of a row alike: weights stay, and the maximum takes it at the
  // end. The sink joins the denominator, the sum divides; an empty row (sum 0) becomes 0 with lse -inf, or the sink's.
  void store(int r) {
    const float keys_sum = warp_sum(sum[r]);
    if constexpr (cfg.key_mean && !cfg.softcap)
      if (max[r] != minus_infinity) max[r] += shift[r];
    float total = keys_sum, top = max[r], factor = total == 0.0f ? 0.0f : 1.0f / total;
    if (p.sinks != nullptr && warp * rows + r < tile.used) {
      const float sink = p.sinks[tile.head * p.sinks_head];
      if (sink > top || sink != sink) top = sink;
      const float from = finite_shift(top), weight = exp_from(max[r], from);
      total = fmaf(total, weight, exp_from(sink, from));
      factor = keys_sum == 0.0f ? 0.0f : weight / total;
    }
    const index_t s = tile.sequence.first_q + row[r], first = p.out.index(tile.batch, tile.head, s);
    for (int c = 0; c < channels; ++c) {
      const index_t channel = tile.first_channel + c * 32 + lane;
      if (channel < p.head_dim_v) store_element<cfg.out>(p.out.data, first + channel * p.out.column, o[r][c] * factor);
    }
    if (p.lse.present() && tile.first_channel == 0 && lane == 0)
      static_cast<float*>(p.lse.data)[p.lse.index(tile.batch, tile.head, s)] =
          total == 0.0f ? minus_infinity : top + logf(total);
  }
};

}  // namespace scalar

template <ScalarConfig cfg>
inline void attend_scalar(const AttentionParams& p) {
  extern __shared__ float scalar_shared[];
  const index_t items = scalar_work_items(p, cfg);
  for (index_t item = blockIdx.x; item < items; item += gridDim.x) {
    const scalar::Tile tile = scalar::tile_of<cfg>(p, item);
    if (tile.empty()) continue;
    scalar::Block<cfg>(p, tile, scalar_shared).attend();
  }
}

}  // namespace rapt
