// How a block of attention_sm80 closes its rows: sums over lanes and warps, sink, descale of V, output and lse to
// global memory. Device only.
#pragma once

#include "block_rows.cuh"
#include "operands.cuh"

namespace rapt {

// Passes over a row tile. The first is all there is on finite data. If it leaves a non-finite output, hidden keys may
// have reached it (0 * NaN), so V is then read with its non-finite elements as 0, and a third pass counts, for each
// output element, those that its row sees: they make it NaN (docs/semantics.md, "hidden is hidden").
enum Pass : int { plain, sanitised, count_non_finite };

template <AttentionConfig cfg, class Softmax>
struct BlockOutput {
  static constexpr Sm80Layout layout{cfg};
  static constexpr int warp_rows = cfg.block_m / cfg.warps_m, m_tiles = warp_rows / 16, v_tiles = layout.dim_v / 8;
  using Accumulated = float[m_tiles][v_tiles][4];

  // 16-bit rows leave through shared memory, 16 bytes at a time: each warp through its own rows of Q's tile, which
  // nobody else reads, or where those are too short through a tile in the place of everything.
  static constexpr bool in_q_tile = layout.q_row >= 2 * layout.dim_v;
  using Tile = SmemTile<cfg.block_m, in_q_tile ? layout.q_row : 2 * layout.dim_v>;

  // Where rows have factors of their own (OnlineSoftmax), in shared memory behind the states that are merged.
  static constexpr bool by_row = has_row_factors(cfg);
  unsigned factors_at() const { return at.smem + 4 * cfg.warps_k * cfg.block_m * (merge_pitch(cfg) + 2); }

  const AttentionParams& p;
  const BlockRows& at;
  const Pass pass;

  int row_of(int mt, int half) const { return at.first_row + at.warp_m * warp_rows + mt * 16 + at.lane / 4 + 8 * half; }

  struct RowEnd {
    float factor, lse;  // output = factor * accumulated output
  };

  // q . k_mean of a row: what smoothing took from all its logits, before the scale.
  float row_shift(int row) const {
    if constexpr (!cfg.key_mean) return 0.0f;
    const index_t from = p.q.index(at.batch, at.head, at.first_q + row);
    const float* mean = p.k_mean + at.batch * p.k_mean_batch + at.head_k * p.k_mean_head;
    float sum = 0.0f;
    for (int d = 0; d < cfg.head_dim; ++d)
      sum = fmaf(load_element<cfg.q>(p.q.data, from + d), mean[d * p.k_mean_channel], sum);
    return p.q_scale.present() ? sum * *p.q_scale.at(at.batch, at.head, at.first_q, row) : sum;
  }

  // V's descale where one serves the whole head.
  float value_scale() const {
    const bool uniform = is_code(cfg.v) && cfg.value_scales == 0 && !cfg.channel_scales && p.v_scale.present();
    return uniform && pass != count_non_finite ? *p.v_scale.at(at.batch, at.head_k, 0, 0) : 1.0f;
  }

  // Closes a row: joins the sink, and gives empty rows 0 and -inf.
  RowEnd end_row(int row, float c, float reference, float sum) const {
    float top = Softmax::natural(reference, c), share = 1.0f / Softmax::one;
    sum *= share;
    if (cfg.key_mean && row < at.seqlen_q && top != minus_infinity) top = fmaf(row_shift(row), p.scale, top);
    if (p.sinks != nullptr) {
      const float sink = p.sinks[at.head * p.sinks_head], higher = fmaxf(top, sink);
      const float base = higher == minus_infinity ? 0.0f : higher, moved = exp2_approx((top - base) * log2_e);
      sum = sum * moved + exp2_approx((sink - base) * log2_e);
      share *= moved;
      top = higher;
    }
    if (sum == 0.0f) return {0.0f, minus_infinity};
    return {__fdividef(share, sum), top + log2_approx(sum) * ln_2};
  }

  void store_lse(int row, float lse) const {
    if (p.lse.present() && row < at.seqlen_q)
      static_cast<float*>(p.lse.data)[p.lse.index(at.batch, at.head, at.first_q + row)] = lse;
  }
  index_t out_index(int row) const { return p.out.index(at.batch, at.head, at.first_q + row); }

  // What V's descale by channel makes of x; elements past the last channel are never stored.
  float descaled(float x, int column) const {
    if constexpr (cfg.channel_scales) {
      if (pass != count_non_finite && column < cfg.head_dim_v)
        return x * p.v_scale.at(at.batch, at.head_k, 0, 0)[column * p.v_scale.channel];
    }
    return x;
  }

  // 16 bytes of 16-bit outputs, or in the third pass the counts in their place: elements that counted something become
  // NaN.
  void store_chunk(int row, int chunk, const Bytes16& x) const {
    unsigned short* const to = static_cast<unsigned short*>(p.out.data) + out_index(row) + chunk * 8;
    if (pass != count_non_finite) {
      *reinterpret_cast<Bytes16*>(to) = x;
      return;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (x.word[i / 2] >> i % 2 * 16 & 0xffffu) to[i] = 0x7fff;
  }

  // Where a row's keys were dealt to one warp. Returns 0, or NaN if a stored value is not finite.
  float store_rows(const Softmax& softmax, const Accumulated& o) const {
    float finite = 0.0f;
    const float scale = value_scale();
    if constexpr (in_q_tile)
      __syncwarp();
    else
      __syncthreads();
#pragma unroll
    for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = row_of(mt, half);
        const RowEnd end =
            end_row(row, softmax.c_of(mt, half), softmax.reference[mt][half], quad_sum(softmax.sum[mt][half]));
        if (at.lane % 4 == 0 && pass != count_non_finite) store_lse(row, end.lse);
        const float factor = pass == count_non_finite ? 1.0f : end.factor * scale,
                    checked = row < at.seqlen_q ? 0.0f : minus_infinity;
#pragma unroll
        for (int n = 0; n < v_tiles; ++n) {
          const ChannelPair<cfg> pair(o[mt][n / 2 * 2], o[mt][n / 2 * 2 + 1], n / 2, n % 2, half, at.lane);
          const float x = descaled(pair.x * factor, pair.column), y = descaled(pair.y * factor, pair.column + 1);
          if (checked == 0.0f) finite = fmaf(x, 0.0f, fmaf(y, 0.0f, finite));
          store_shared(at.smem + Tile::offset(row - at.first_row, pair.column / 8) + pair.column % 8 * 2,
                       pack2<cfg.out>(x, y));
        }
      }
    __syncwarp();
    constexpr int chunks = cfg.head_dim_v / 8;
    for (int i = at.lane; i < warp_rows * chunks; i += 32) {
      const int row = at.warp_m * warp_rows + i / chunks, chunk = i % chunks;
      if (at.first_row + row < at.seqlen_q)
        store_chunk(at.first_row + row, chunk, load_shared_16(at.smem + Tile::offset(row, chunk)));
    }
    return finite;
  }

  // Where keys were dealt to several warps, or outputs are f32: each leaves its state in shared memory, all merge in
  // the order of the keys' warps.
  float merge_rows(const Softmax& softmax, const Accumulated& o) const {
    constexpr int pitch = merge_pitch(cfg), part = cfg.block_m * pitch;
    const unsigned facts = at.smem + 4 * cfg.warps_k * part;
    __syncthreads();
#pragma unroll
    for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = row_of(mt, half) - at.first_row;
        const float sum = quad_sum(softmax.sum[mt][half]);
        if (by_row && at.warp_k == 0 && at.lane % 4 == 0)
          store_shared(factors_at() + 4 * row, detail::bits_of(softmax.c_of(mt, half)));
        if (at.lane % 4 == 0)
          store_shared_2(facts + 8 * (at.warp_k * cfg.block_m + row),
                         pass == count_non_finite ? 0.0f : softmax.reference[mt][half],
                         pass == count_non_finite ? 1.0f : sum);
#pragma unroll
        for (int n = 0; n < v_tiles; ++n) {
          const ChannelPair<cfg> pair(o[mt][n / 2 * 2], o[mt][n / 2 * 2 + 1], n / 2, n % 2, half, at.lane);
          store_shared_2(at.smem + 4 * (at.warp_k * part + row * pitch + pair.column), pair.x, pair.y);
        }
      }
    __syncthreads();
    float finite = 0.0f;
    const float scale = value_scale();
    constexpr int chunks = cfg.head_dim_v / 8;
    for (int i = at.thread; i < cfg.block_m * chunks; i += cfg.threads()) {
      const int row = i / chunks, chunk = i % chunks;
      if (at.first_row + row >= at.seqlen_q) continue;
      float merged[8];
      merge_chunk(softmax, row, chunk, facts, scale, merged);
      for (int j = 0; j < 8; ++j) finite = fmaf(merged[j], 0.0f, finite);
      store_8(at.first_row + row, chunk, merged);
    }
    return finite;
  }

  void store_8(int row, int chunk, const float (&x)[8]) const {
    if constexpr (is_16bit(cfg.out)) {
      Bytes16 packed;
#pragma unroll
      for (int i = 0; i < 4; ++i) packed.word[i] = pack2<cfg.out>(x[2 * i], x[2 * i + 1]);
      store_chunk(row, chunk, packed);
    } else {
      float* const to = static_cast<float*>(p.out.data) + out_index(row) + chunk * 8;
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (pass != count_non_finite || x[i] > 0.0f)
          to[i] = pass == count_non_finite ? detail::float_of(0x7fffffffu) : x[i];
    }
  }

  // Eight channels of one row of the block, over all parts; the first chunk's thread stores the row's lse.
  void merge_chunk(const Softmax& softmax, int row, int chunk, unsigned facts, float scale, float (&merged)[8]) const {
    constexpr int pitch = merge_pitch(cfg), part = cfg.block_m * pitch;
    const float c = by_row ? detail::float_of(load_shared(factors_at() + 4 * row)) : softmax.c_of(0, 0);
    float reference[cfg.warps_k], part_sum[cfg.warps_k], top = minus_infinity, sum = 0.0f;
#pragma unroll
    for (int k = 0; k < cfg.warps_k; ++k) {
      load_shared_2(facts + 8 * (k * cfg.block_m + row), reference[k], part_sum[k]);
      top = fmaxf(top, reference[k]);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) merged[i] = 0.0f;
#pragma unroll
    for (int k = 0; k < cfg.warps_k; ++k) {
      const float factor = reference[k] == top ? 1.0f : Softmax::ratio(reference[k], top, c);
      sum += part_sum[k] * factor;
      const unsigned from = at.smem + 4 * (k * part + row * pitch + chunk * 8);
      float x[8];
      load_shared_4(from, x[0], x[1], x[2], x[3]);
      load_shared_4(from + 16, x[4], x[5], x[6], x[7]);
#pragma unroll
      for (int i = 0; i < 8; ++i) merged[i] = fmaf(factor, x[i], merged[i]);
    }
    if (pass == count_non_finite) return;
    const RowEnd end = end_row(at.first_row + row, c, top, sum);
    if (chunk == 0) store_lse(at.first_row + row, end.lse);
#pragma unroll
    for (int i = 0; i < 8; ++i) merged[i] = descaled(merged[i] * (end.factor * scale), chunk * 8 + i);
  }
};

}  // namespace rapt
