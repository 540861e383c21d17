// The epilogue of attention_sm80: reduces row sums over lanes and warps, applies the sink and V's descales, divides,
// and writes out and lse to global memory. Device only.
#pragma once

#include "cta_tile.cuh"
#include "fragments.cuh"

namespace rapt {

// Passes over a tile. Finite data needs only the first pass. If an output is not finite, a masked key can be the cause,
// because 0 * NaN is NaN. Then the second pass reads non-finite elements of V as 0. The third pass counts, for each
// output element, the non-finite elements of V that its row sees. An output element with a count above 0 becomes NaN
// (docs/semantics.md, "NaN and Inf").
enum NanPass : int { normal, zero_non_finite, count_non_finite };

template <const Sm80Config& cfg, class Softmax>
struct Epilogue {
  static constexpr Sm80Layout layout{cfg};
  static constexpr int warp_rows = cfg.block_m / cfg.warps_m, m_tiles = warp_rows / 16, v_tiles = layout.dim_v / 8;
  using OFragment = float[m_tiles][v_tiles][4];

  // 16-bit output is staged in shared memory and stored 16 bytes at a time. Each warp uses its own rows of the Q tile,
  // which no other warp reads. If these rows are too short, the output uses a tile over all of the shared memory.
  static constexpr bool in_q_tile = layout.q_row >= 2 * layout.dim_v;
  using Tile = SmemTile<cfg.block_m, in_q_tile ? layout.q_row : 2 * layout.dim_v>;

  // Per-row values of scale_log2 (OnlineSoftmax), in shared memory behind the warps' partial results.
  static constexpr bool per_row_scale = has_row_scales(cfg);
  unsigned row_scales_smem() const { return cta.smem + 4 * cfg.warps_n * cfg.block_m * (f32_epilogue_pitch(cfg) + 2); }

  const AttentionParams& p;
  const CtaTile& cta;
  const NanPass pass;

  int row_of(int mt, int half) const {
    return cta.first_row + cta.warp_m * warp_rows + mt * 16 + cta.lane / 4 + 8 * half;
  }

  // The index of a row of Q, O or lse.
  index_t index_of(const TensorRef& t, int row) const {
    return t.index(cta.batch, head_of<cfg>(p, cta, row), cta.first_q + query_of<cfg>(p, row));
  }

  struct RowResult {
    float factor, lse;  // out = factor * accumulator
  };

  // Returns q . k_mean of a row, without the softmax scale. Smoothing subtracted this value from all logits of the row.
  float mean_logit(int row) const {
    if constexpr (!cfg.key_mean) return 0.0f;
    const index_t from = index_of(p.q, row);
    const float* mean = p.k_mean + cta.batch * p.k_mean_batch + cta.head_k * p.k_mean_head;
    float sum = 0.0f;
    for (int d = 0; d < cfg.head_dim; ++d)
      sum = fmaf(load_element<cfg.q>(p.q.data, from + d), mean[d * p.k_mean_channel], sum);
    if (!p.q_scale.present()) return sum;
    return sum * *p.q_scale.at(cta.batch, head_of<cfg>(p, cta, row), cta.first_q, query_of<cfg>(p, row));
  }

  // Returns V's descale if it is the same for the whole head, else 1.
  float v_descale() const {
    const bool uniform =
        is_tensor_core_fp8(cfg.v) && cfg.v_descale_block == 0 && !cfg.v_channel_descales && p.v_scale.present();
    return uniform && pass != count_non_finite ? *p.v_scale.at(cta.batch, cta.head_k, 0, 0) : 1.0f;
  }

  // Returns the final factor and lse of a row, including the sink. A row that sees no key gets factor 0 and lse -inf.
  RowResult finalize_row(int row, float scale_log2, float row_max, float sum) const {
    float max_logit = Softmax::natural_logit(row_max, scale_log2), factor = 1.0f / Softmax::p_scale;
    sum *= factor;
    if (cfg.key_mean && row < cta.seqlen_q && max_logit != minus_infinity)
      max_logit = fmaf(mean_logit(row), p.scale, max_logit);
    if (p.sinks != nullptr) {
      const float sink = p.sinks[head_of<cfg>(p, cta, row) * p.sinks_head], new_max = fmaxf(max_logit, sink);
      const float shift = new_max == minus_infinity ? 0.0f : new_max,
                  rescale = exp2_approx((max_logit - shift) * log2_e);
      sum = sum * rescale + exp2_approx((sink - shift) * log2_e);
      factor *= rescale;
      max_logit = new_max;
    }
    if (sum == 0.0f) return {0.0f, minus_infinity};
    return {__fdividef(factor, sum), max_logit + log2_approx(sum) * ln_2};
  }

  void store_lse(int row, float lse) const {
    if (p.lse.present() && row < cta.seqlen_q) static_cast<float*>(p.lse.data)[index_of(p.lse, row)] = lse;
  }
  index_t out_index(int row) const { return index_of(p.out, row); }

  // Applies the channel descale of V. Columns past head_dim_v are never stored.
  float apply_v_channel_descale(float x, int column) const {
    if constexpr (cfg.v_channel_descales) {
      if (pass != count_non_finite && column < cfg.head_dim_v)
        return x * p.v_scale.at(cta.batch, cta.head_k, 0, 0)[column * p.v_scale.channel];
    }
    return x;
  }

  // Stores 8 outputs of 16 bits. In the third pass x holds counts, and elements with a count above 0 become NaN.
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

  // Stores the rows if warps_n = 1 and the output is 16-bit. Returns 0, or NaN if a stored value is not finite.
  float store_rows(const Softmax& softmax, const OFragment& o) const {
    float nan_if_nonfinite = 0.0f;
    const float scale = v_descale();
    if constexpr (in_q_tile)
      __syncwarp();
    else
      __syncthreads();
#pragma unroll
    for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = row_of(mt, half);
        const RowResult end = finalize_row(row, softmax.row_scale_log2(mt, half), softmax.row_max[mt][half],
                                           quad_sum(softmax.row_sum[mt][half]));
        if (cta.lane % 4 == 0 && pass != count_non_finite) store_lse(row, end.lse);
        const float factor = pass == count_non_finite ? 1.0f : end.factor * scale,
                    checked = row < cta.seqlen_q ? 0.0f : minus_infinity;
#pragma unroll
        for (int n = 0; n < v_tiles; ++n) {
          const ChannelPair<cfg> pair(o[mt][n / 2 * 2], o[mt][n / 2 * 2 + 1], n / 2, n % 2, half, cta.lane);
          const float x = apply_v_channel_descale(pair.x * factor, pair.column),
                      y = apply_v_channel_descale(pair.y * factor, pair.column + 1);
          if (checked == 0.0f) nan_if_nonfinite = fmaf(x, 0.0f, fmaf(y, 0.0f, nan_if_nonfinite));
          store_shared(cta.smem + Tile::offset(row - cta.first_row, pair.column / 8) + pair.column % 8 * 2,
                       pack2<cfg.out>(x, y));
        }
      }
    __syncwarp();
    constexpr int chunks = cfg.head_dim_v / 8;
    for (int i = cta.lane; i < warp_rows * chunks; i += 32) {
      const int row = cta.warp_m * warp_rows + i / chunks, chunk = i % chunks;
      if (cta.first_row + row < cta.seqlen_q)
        store_chunk(cta.first_row + row, chunk, load_shared_16(cta.smem + Tile::offset(row, chunk)));
    }
    return nan_if_nonfinite;
  }

  // Stores the rows if warps_n > 1 or the output is f32. The return value is that of store_rows().
  float combine_rows(const Softmax& softmax, const OFragment& o) const {
    stage_rows(softmax, o);
    const float scale = v_descale();
    return combine_staged(softmax, [&](int row, int chunk, WarpsResult& sums) {
      if (pass != count_non_finite) finish_chunk(row, chunk, scale, sums);
      store_8(cta.first_row + row, chunk, sums.o);
    });
  }

  // Writes row_max, row_sum and O of each warp to shared memory.
  static constexpr int staged_bytes = 4 * cfg.warps_n * cfg.block_m * f32_epilogue_pitch(cfg);
  void stage_rows(const Softmax& softmax, const OFragment& o) const {
    constexpr int pitch = f32_epilogue_pitch(cfg), part = cfg.block_m * pitch;
    const unsigned stats = cta.smem + staged_bytes;
    __syncthreads();
#pragma unroll
    for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = row_of(mt, half) - cta.first_row;
        const float sum = quad_sum(softmax.row_sum[mt][half]);
        if (per_row_scale && cta.warp_n == 0 && cta.lane % 4 == 0)
          store_shared(row_scales_smem() + 4 * row, detail::bits_of(softmax.row_scale_log2(mt, half)));
        if (cta.lane % 4 == 0)
          store_shared_2(stats + 8 * (cta.warp_n * cfg.block_m + row),
                         pass == count_non_finite ? 0.0f : softmax.row_max[mt][half],
                         pass == count_non_finite ? 1.0f : sum);
#pragma unroll
        for (int n = 0; n < v_tiles; ++n) {
          const ChannelPair<cfg> pair(o[mt][n / 2 * 2], o[mt][n / 2 * 2 + 1], n / 2, n % 2, half, cta.lane);
          store_shared_2(cta.smem + 4 * (cta.warp_n * part + row * pitch + pair.column), pair.x, pair.y);
        }
      }
    __syncthreads();
  }

  // Combines the staged results of all warps, and calls store(row of the tile, chunk of 8 channels, result). The return
  // value is that of store_rows().
  struct WarpsResult {
    float row_max, row_sum, scale_log2, o[8];
  };
  template <class Store>
  float combine_staged(const Softmax& softmax, const Store& store) const {
    float nan_if_nonfinite = 0.0f;
    constexpr int chunks = cfg.head_dim_v / 8;
    for (int i = cta.thread; i < cfg.block_m * chunks; i += cfg.threads()) {
      const int row = i / chunks, chunk = i % chunks;
      if (cta.first_row + row >= cta.seqlen_q) continue;
      WarpsResult sums = combine_chunk(softmax, row, chunk);
      store(row, chunk, sums);
      for (int j = 0; j < 8; ++j) nan_if_nonfinite = fmaf(sums.o[j], 0.0f, nan_if_nonfinite);
    }
    return nan_if_nonfinite;
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

  // Combines 8 channels of one row over all warps, in a fixed order.
  WarpsResult combine_chunk(const Softmax& softmax, int row, int chunk) const {
    constexpr int pitch = f32_epilogue_pitch(cfg), part = cfg.block_m * pitch;
    const unsigned stats = cta.smem + staged_bytes;
    WarpsResult all{minus_infinity, 0.0f, softmax.row_scale_log2(0, 0), {}};
    if constexpr (per_row_scale) all.scale_log2 = detail::float_of(load_shared(row_scales_smem() + 4 * row));
    float row_max[cfg.warps_n], part_sum[cfg.warps_n];
#pragma unroll
    for (int k = 0; k < cfg.warps_n; ++k) {
      load_shared_2(stats + 8 * (k * cfg.block_m + row), row_max[k], part_sum[k]);
      all.row_max = fmaxf(all.row_max, row_max[k]);
    }
#pragma unroll
    for (int k = 0; k < cfg.warps_n; ++k) {
      const float factor =
          row_max[k] == all.row_max ? 1.0f : Softmax::rescale_factor(row_max[k], all.row_max, all.scale_log2);
      all.row_sum += part_sum[k] * factor;
      const unsigned from = cta.smem + 4 * (k * part + row * pitch + chunk * 8);
      float x[8];
      load_shared_4(from, x[0], x[1], x[2], x[3]);
      load_shared_4(from + 16, x[4], x[5], x[6], x[7]);
#pragma unroll
      for (int i = 0; i < 8; ++i) all.o[i] = fmaf(factor, x[i], all.o[i]);
    }
    return all;
  }

  // Turns the sums of a row into 8 outputs. The thread of chunk 0 stores the row's lse.
  void finish_chunk(int row, int chunk, float scale, WarpsResult& sums) const {
    const RowResult end = finalize_row(cta.first_row + row, sums.scale_log2, sums.row_max, sums.row_sum);
    if (chunk == 0) store_lse(cta.first_row + row, end.lse);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      // With `invariant`, -0 becomes 0, because a merge with an empty part changes -0 to 0.
      const float x = cfg.part_keys > 0 ? fmaf(sums.o[i], end.factor * scale, 0.0f) : sums.o[i] * (end.factor * scale);
      sums.o[i] = apply_v_channel_descale(x, chunk * 8 + i);
    }
  }
};

}  // namespace rapt
