// attention_scalar, device code. It computes every problem that rapt supports on GPUs, except acc=f16 and acc=tf32, in
// f32 without tensor cores. A warp owns a few query rows. Tiles of 32 keys pass through shared memory. In QK^T each
// lane has one key; in PV each lane has some channels. Online softmax (Milakov & Gimelshein 2018) as defined in
// docs/semantics.md. It accepts any strides, sizes and contents. Host half: attention_scalar.cpp. Also runs on a CPU
// (lab/emulation).
#pragma once

#include "config.h"
#include "device/numeric.cuh"
#include "device/score.cuh"
#include "device/trace.cuh"
#include "shared/key_tiles.h"
#include "shared/kv_view.h"

RAPT_TRACE_STAGES("start|load Q, K|Q.K|softmax|load V|P.V|store")

namespace rapt {
namespace scalar {

constexpr float minus_infinity = detail::float_of(0xff800000u);
constexpr float log2_e = 1.4426950408889634f;
constexpr unsigned all_lanes = 0xffffffffu;

inline float warp_max(float x) {  // ignores NaN
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(all_lanes, x, step));
  return x;
}

inline float warp_sum(float x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(all_lanes, x, step);
  return x;
}

// Returns e^(x - shift), which is 0 for x = -inf. shift must be finite. finite_max() replaces -inf (no key seen yet) by
// 0.
inline float exp_minus(float x, float shift) { return exp2_approx((x - shift) * log2_e); }
inline float finite_max(float max) { return max == minus_infinity ? 0.0f : max; }

inline float round_to_e4m3(float x) { return e4m3_to_f32(static_cast<unsigned char>(pack_e4m3x2(x, 0.0f))); }

// Rounds a weight in [0, 1], scaled by 256, to one E4M3 number or to the sum of two. The second number holds the
// rounding error of the first.
template <int terms>
inline float round_to_e4m3_terms(float w) {
  constexpr float headroom = 256.0f;
  const float high = round_to_e4m3(w * headroom);
  if constexpr (terms == 1) return high * (1.0f / headroom);
  return (high + round_to_e4m3(fmaf(w, headroom, -high))) * (1.0f / headroom);
}

// One value for each of the warp's rows, loaded as one vector.
template <int rows>
struct alignas(rows == 4 ? 16 : 4) RowValues {
  float x[rows];
};

// The work of a CTA: block_m query rows of one head, and a slice of the output channels. Rows beyond seqused_q are
// included. They see no key. They are stored with out = 0 and lse = -inf, also if there are sinks.
struct WorkTile {
  index_t batch = 0, head = 0, first_row = 0, first_channel = 0;
  Sequence sequence;
  int used_rows = 0, stored_rows = 0;  // the first used_rows are queries; the first stored_rows have an output
  bool empty() const { return first_row < 0 || stored_rows == 0; }
};

inline index_t first_m_block(const AttentionParams& p, int block_m, index_t b) {
  return clamped(p.cu_seqlens_q[b], 0, p.total_q) / block_m + b;
}

// The last sequence whose first m block is at or before m_block.
inline index_t sequence_of_m_block(const AttentionParams& p, int block_m, index_t m_block) {
  index_t low = 0, high = p.batch;
  while (high - low > 1) {
    const index_t middle = low + (high - low) / 2;
    (first_m_block(p, block_m, middle) <= m_block ? low : high) = middle;
  }
  return low;
}

template <ScalarConfig cfg>
inline WorkTile work_tile(const AttentionParams& p, index_t item) {
  const index_t slices = scalar_v_slices(p, cfg.head_dim_v), m_blocks = scalar_m_blocks(p, cfg.block_m);
  WorkTile t;
  t.first_channel = item % slices * cfg.head_dim_v;
  item /= slices;
  if (p.cu_seqlens_q.present()) {
    const index_t m_block = item % m_blocks;
    t.head = item / m_blocks;
    t.batch = sequence_of_m_block(p, cfg.block_m, m_block);
    t.first_row = (m_block - first_m_block(p, cfg.block_m, t.batch)) * cfg.block_m;
  } else {
    const index_t tiles = m_blocks / p.batch;
    t.first_row = (tiles - 1 - item % tiles) * cfg.block_m;  // last rows first: with causal masks they take longest
    t.head = item / tiles % p.heads_q;
    t.batch = item / tiles / p.heads_q;
  }
  t.sequence = sequence_of(p, t.batch);
  t.used_rows = static_cast<int>(clamped(t.sequence.seqlen_q - t.first_row, 0, cfg.block_m));
  t.stored_rows = static_cast<int>(clamped(t.sequence.rows_q - t.first_row, 0, cfg.block_m));
  return t;
}

// The part of a tensor to copy to shared memory. It belongs to one sequence and head, and begins at first_row and
// first_column. first_packed: the packed row at which the sequence begins; 0 if dense. rows, columns: how many rows and
// columns exist from first_row and first_column on.
struct TileSource {
  index_t batch, head, first_packed, first_row, first_column, rows, columns;
};

// Copies `source` to shared memory as descaled floats, at row * row_pitch + column * column_pitch. Missing elements
// become 0. Used for Q, K and V, whose rows are addressed in the same way.
template <DType dtype, int rows, int columns, int threads, bool paged = false>
inline void copy_tile(const AttentionParams& p, const TensorRef& t, const ScaleRef& scale, const TileSource& source,
                      int row_pitch, int column_pitch, float* to) {
  for (int e = static_cast<int>(threadIdx.x); e < rows * columns; e += threads) {
    const int row = e / columns, column = e % columns;
    float x = 0.0f;
    if (row < source.rows && column < source.columns) {
      const index_t s = source.first_row + row, c = source.first_column + column;
      index_t at;
      if constexpr (paged)
        at = kv_row(p, t, source.batch, source.head, source.first_packed, s);
      else
        at = t.index(source.batch, source.head, source.first_packed + s);
      x = load_element<dtype>(t.data, at + c * t.column);
      if constexpr (is_fp8(dtype)) {
        const float* descale = nullptr;
        if constexpr (paged)
          descale = kv_descale(p, scale, source.batch, source.head, source.first_packed, s);
        else
          descale = scale.at(source.batch, source.head, source.first_packed, s);
        if (scale.present()) x *= descale[c * scale.channel];
      }
    }
    to[row * row_pitch + column * column_pitch] = x;
  }
}

// Computes a work tile. The members are those of one thread.
template <ScalarConfig cfg>
struct Cta {
  static constexpr ScalarTile layout{cfg};
  static constexpr int rows = layout.rows, channels = cfg.head_dim_v / 32;  // rows per warp, channels per lane
  static_assert(cfg.block_n == 32, "a lane is a key");
  static_assert(cfg.block_m % cfg.warps_m == 0 && cfg.head_dim_v % 32 == 0);

  const AttentionParams& p;
  const WorkTile& tile;
  float* const q;        // [head_dim][q_pitch]
  float* const p_smem;   // [block_n][rows], of this warp
  float* const kv_smem;  // a tile of K, later of V
  const int lane, warp;
  const index_t head_k;

  index_t row[rows];  // query index
  KeyRange visible[rows];
  float row_max[rows], o[rows][channels];
  float row_sum[rows];            // sums over this lane's keys only
  unsigned seen_keys[rows] = {};  // bit j: the row sees key j of the tile
  float rescale[rows] = {};
  float mean_logit[rows] = {};  // scale * q . k_mean (smooth_k)

  Cta(const AttentionParams& params, const WorkTile& t, float* shared)
      : p(params),
        tile(t),
        q(shared),
        p_smem(shared + layout.p_smem + static_cast<int>(threadIdx.x) / 32 * rows * cfg.block_n),
        kv_smem(shared + layout.kv_smem),
        lane(static_cast<int>(threadIdx.x) % 32),
        warp(static_cast<int>(threadIdx.x) / 32),
        head_k(t.head / params.group) {
    for (int r = 0; r < rows; ++r) {
      row[r] = tile.first_row + warp * rows + r;
      if (warp * rows + r < tile.used_rows) visible[r] = keys_of(row[r]);
      row_max[r] = minus_infinity;
      row_sum[r] = 0.0f;
      for (int c = 0; c < channels; ++c) o[r][c] = 0.0f;
    }
  }

  void attend() {
    const KeyTiles<long long> tiles = keys_of_block();
    const index_t begin = tiles.first(cfg.block_n) * cfg.block_n;
    for (index_t first = begin; first < tiles.some.end; first += cfg.block_n) {
      float dot[rows];
      qk_products(first, first == begin, dot);
      RAPT_TRACE_NEXT("softmax");
      softmax(first, dot);
      RAPT_TRACE_NEXT("load V");
      __syncthreads();  // K has been read, weights have been written
      load_v(first);
      __syncthreads();
      RAPT_TRACE_NEXT("P.V");
      accumulate_pv();
    }
    RAPT_TRACE_NEXT("store");
    for (int r = 0; r < rows; ++r)
      if (warp * rows + r < tile.stored_rows) store(r);
    __syncthreads();  // the next work tile overwrites the shared memory
  }

  KeyRange keys_of(index_t i) const { return p.position_mask.visible(i, tile.sequence.offset, tile.sequence.seqlen_k); }

  // Returns the keys that at least one row sees (KeyTiles::some). KeyTiles::full (the keys that every row sees) is not
  // used, because this kernel masks each key on its own.
  KeyTiles<long long> keys_of_block() const {
    if (tile.used_rows == 0) return {};  // all rows are beyond seqused_q
    const KeyRange first = keys_of(tile.first_row), last = keys_of(tile.first_row + tile.used_rows - 1);
    return KeyTiles<long long>::of_rows({first.begin, first.end}, {last.begin, last.end});
  }

  void load_q(index_t first_column) {
    const TileSource source{tile.batch,   tile.head,      tile.sequence.first_q,    tile.first_row,
                            first_column, tile.used_rows, p.head_dim - first_column};
    copy_tile<cfg.q, cfg.block_m, cfg.head_dim, cfg.threads()>(p, p.q, p.q_scale, source, 1, layout.q_pitch, q);
  }
  void load_k(index_t first, index_t first_column) {
    const TileSource source{tile.batch,
                            head_k,
                            tile.sequence.first_k,
                            first,
                            first_column,
                            tile.sequence.seqlen_k - first,
                            p.head_dim - first_column};
    copy_tile<cfg.k, cfg.block_n, cfg.head_dim, cfg.threads(), cfg.paged>(p, p.k, p.k_scale, source, layout.k_pitch, 1,
                                                                          kv_smem);
  }
  void load_v(index_t first) {
    const TileSource source{tile.batch,
                            head_k,
                            tile.sequence.first_k,
                            first,
                            tile.first_channel,
                            tile.sequence.seqlen_k - first,
                            p.head_dim_v - tile.first_channel};
    copy_tile<cfg.v, cfg.block_n, cfg.head_dim_v, cfg.threads(), cfg.paged>(p, p.v, p.v_scale, source, cfg.head_dim_v,
                                                                            1, kv_smem);
  }

  // Adds the products of the loaded channels of Q with k_mean to mean_logit.
  void add_mean_logits(index_t first_column, int depth) {
    const float* mean = p.k_mean + tile.batch * p.k_mean_batch + head_k * p.k_mean_head;
    float partial[rows] = {};
    for (int d = lane; d < depth; d += 32) {
      const float m = mean[(first_column + d) * p.k_mean_channel];
      const auto x = *reinterpret_cast<const RowValues<rows>*>(q + d * layout.q_pitch + warp * rows);
      for (int r = 0; r < rows; ++r) partial[r] = fmaf(x.x[r], m, partial[r]);
    }
    for (int r = 0; r < rows; ++r) mean_logit[r] = fmaf(warp_sum(partial[r]), p.scale, mean_logit[r]);
  }

  // Computes the products of the warp's rows of Q and this lane's key. A head_dim above cfg.head_dim is processed in
  // slices.
  void qk_products(index_t first, bool first_tile, float (&dot)[rows]) {
    for (int r = 0; r < rows; ++r) dot[r] = 0.0f;
    for (index_t column = 0; column < p.head_dim; column += cfg.head_dim) {
      RAPT_TRACE_NEXT("load Q, K");
      __syncthreads();  // the previous contents have been read
      if (first_tile || p.head_dim > cfg.head_dim) load_q(column);
      load_k(first, column);
      __syncthreads();
      RAPT_TRACE_NEXT("Q.K");
      const int depth = static_cast<int>(clamped(p.head_dim - column, 0, cfg.head_dim));
      if constexpr (cfg.key_mean) {
        if (first_tile) add_mean_logits(column, depth);
      }
      float partial[rows] = {};
      for (int d = 0; d < depth; ++d) {
        const float k = kv_smem[lane * layout.k_pitch + d];
        const auto x = *reinterpret_cast<const RowValues<rows>*>(q + d * layout.q_pitch + warp * rows);
        for (int r = 0; r < rows; ++r) partial[r] = fmaf(x.x[r], k, partial[r]);
      }
      for (int r = 0; r < rows; ++r) dot[r] += partial[r];
    }
  }

  // Computes weights from products, and updates row_max and row_sum.
  void softmax(index_t first, const float (&dot)[rows]) {
    const index_t j = first + lane;
    RowValues<rows> weight;
    for (int r = 0; r < rows; ++r) {
      float x = minus_infinity;
      if (j >= visible[r].begin && j < visible[r].end)
        x = RowScoreChain<cfg, ExactTanh>(p, p.scale, mean_logit[r], tile.sequence.offset, tile.batch, tile.head,
                                          row[r])
                .logit(dot[r], j);
      seen_keys[r] = __ballot_sync(all_lanes, x != minus_infinity);
      weight.x[r] = 0.0f;
      if (seen_keys[r] == 0) continue;  // the row does not change
      // from: the maximum that is subtracted from the logits.
      const float new_max = fmaxf(row_max[r], warp_max(x)), from = finite_max(new_max);
      weight.x[r] = exp_minus(x, from);
      rescale[r] = exp_minus(row_max[r], from);
      row_sum[r] = fmaf(row_sum[r], rescale[r], weight.x[r]);
      row_max[r] = new_max;
      if constexpr (cfg.p_terms > 0) weight.x[r] = round_to_e4m3_terms<cfg.p_terms>(weight.x[r]);
    }
    *reinterpret_cast<RowValues<rows>*>(p_smem + lane * rows) = weight;
  }

  // O += PV with two-level accumulation: the tile's products are summed first. Masked keys are skipped rather than
  // multiplied by 0, because V can be NaN there.
  void accumulate_pv() {
    float partial[rows][channels] = {};
    for (int j = 0; j < cfg.block_n; ++j) {
      float v[channels];
      for (int c = 0; c < channels; ++c) v[c] = kv_smem[j * cfg.head_dim_v + c * 32 + lane];
      const auto weight = *reinterpret_cast<const RowValues<rows>*>(p_smem + j * rows);
      for (int r = 0; r < rows; ++r) {
        if ((seen_keys[r] >> j & 1u) == 0) continue;
        for (int c = 0; c < channels; ++c) partial[r][c] = fmaf(weight.x[r], v[c], partial[r][c]);
      }
    }
    for (int r = 0; r < rows; ++r) {
      if (seen_keys[r] == 0) continue;
      for (int c = 0; c < channels; ++c) o[r][c] = fmaf(o[r][c], rescale[r], partial[r][c]);
    }
  }

  // Finishes a row. Without softcap, k_mean shifts all logits of a row equally: weights do not change, and the shift is
  // added to row_max here. The sink is added to the denominator. A row that sees no key (sum 0) gets out = 0 and
  // lse = -inf, or the sink as lse.
  void store(int r) {
    const float total_sum = warp_sum(row_sum[r]);
    if constexpr (cfg.key_mean && !cfg.softcap)
      if (row_max[r] != minus_infinity) row_max[r] += mean_logit[r];
    float total = total_sum, top = row_max[r], factor = total == 0.0f ? 0.0f : 1.0f / total;
    if (p.sinks != nullptr && warp * rows + r < tile.used_rows) {
      const float sink = p.sinks[tile.head * p.sinks_head];
      if (sink > top || sink != sink) top = sink;
      // from: as in softmax(), but the maximum includes the sink.
      const float from = finite_max(top), weight = exp_minus(row_max[r], from);
      total = fmaf(total, weight, exp_minus(sink, from));
      factor = total_sum == 0.0f ? 0.0f : weight / total;
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
  RAPT_TRACE_BEGIN("start");
  RAPT_TRACE_COUNTERS();
  extern __shared__ float scalar_shared[];
  const index_t items = scalar_work_items(p, cfg);
  for (index_t item = blockIdx.x; item < items; item += gridDim.x) {
    const scalar::WorkTile tile = scalar::work_tile<cfg>(p, item);
    if (tile.empty()) continue;
    scalar::Cta<cfg>(p, tile, scalar_shared).attend();
  }
  RAPT_TRACE_END();
}

}  // namespace rapt
