// Epilogue of a consumer warpgroup's 64 rows: adds row sums over lanes, applies the sink, and stores O and lse. Device
// only.
#pragma once

#include "device/numeric.cuh"
#include "device/softmax.cuh"
#include "ptx/copy.cuh"
#include "ptx/mma.cuh"
#include "row_tile.cuh"
#include "softmax.cuh"

namespace rapt {

template <const Sm90Config& cfg>
struct Epilogue {
  static constexpr int v_tiles = Sm90Layout(cfg).dim_v / 8, tiles = cfg.head_dim_v / 8;  // tiles of eight columns

  const AttentionParams& p;
  const RowTile<cfg>& tile;
  const NanPass pass;
  const unsigned buffer;  // in shared memory: this warpgroup's rows of Q, which are no longer needed

  struct RowResult {
    float factor, lse;  // out = factor * accumulator
  };

  // Adds the sink. A row without visible keys gets O = 0, and lse = -inf or, with a sink, lse = sink.
  RowResult finalize_row(const RowSoftmax<cfg>& softmax, int half, int row) const {
    // The weights are multiplied by 1 / unit.
    constexpr float unit = detail::float_of((127u - static_cast<unsigned>(RowSoftmax<cfg>::log2_weight)) << 23);
    float sum = quad_sum(softmax.row_sum[half]) * unit, share = unit;
    float top = RowSoftmax<cfg>::Rules::natural_logit(softmax.row_max[half], softmax.c.of(half));
    if constexpr (cfg.key_mean)
      if (top != minus_infinity) top += mean_logit(row);
    if (p.sinks != nullptr) {
      const float sink = p.sinks[tile.head_of(row) * p.sinks_head], higher = fmaxf(top, sink);
      const float base = higher == minus_infinity ? 0.0f : higher, moved = exp2_approx((top - base) * log2_e);
      sum = sum * moved + exp2_approx((sink - base) * log2_e);
      share *= moved;
      top = higher;
    }
    if (sum == 0.0f) return {0.0f, minus_infinity};
    return {__fdividef(share, sum) * head_descale(row), top + log2_approx(sum) * ln_2};
  }
  // Returns the logit of k_mean for a row. Smoothing subtracted it from all logits of the row.
  float mean_logit(int row) const {
    const int last = tile.seqlen_q() - 1, head = tile.head_of(row < last ? row : last),
              query = tile.query_of(row < last ? row : last);
    const index_t from = p.q.index(p.cu_seqlens_q.present() ? 0 : tile.batch(), head, query), batch = tile.batch();
    const float* const mean = p.k_mean + batch * p.k_mean_batch + head_k(row < last ? row : last) * p.k_mean_head;
    float sum = 0.0f;
    for (int d = 0; d < cfg.head_dim; ++d)
      sum = fmaf(load_element<cfg.q>(p.q.data, from + d), mean[d * p.k_mean_channel], sum);
    if (p.q_scale.present()) sum *= *p.q_scale.at(batch, head, tile.first_q(), query - tile.first_q());
    return sum * p.scale;
  }
  // Returns V's descale if it is the same for the whole head, else 1.
  float head_descale(int row) const {
    if constexpr (!is_tensor_core_fp8(cfg.v) || cfg.v_channel_descales) return 1.0f;
    return p.v_scale.present() ? *p.v_scale.at(tile.batch(), head_k(row), 0, 0) : 1.0f;
  }
  index_t head_k(int row) const { return p.by_group.quotient(static_cast<unsigned>(tile.head_of(row))); }

  // Stores the warp's rows. `o` holds this thread's parts of two of these rows. first_row: the first row of the
  // warpgroup. Returns whether this thread's parts are finite.
  bool store(const RowSoftmax<cfg>& softmax, float (&o)[1][v_tiles][4], int first_row) const {
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32 % 4);
    const bool counts = pass == NanPass::count_non_finite;
    if (cfg.v_channel_descales && !counts) scale_channels(o);
    float factor[2], zero = 0.0f;  // zero: becomes NaN if a stored value is not finite
    bool live[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + 16 * warp + lane / 4 + 8 * half;
      live[half] = row < tile.seqlen_q();
      const RowResult end = finalize_row(softmax, half, row);
      factor[half] = counts ? 1.0f : end.factor;
      if (lane % 4 == 0 && live[half] && !counts && p.lse.present())
        static_cast<float*>(p.lse.data)[p.lse.index(tile.batch(), tile.head_of(row), tile.query_of(row))] = end.lse;
      if constexpr (!is_16bit(cfg.out))
        store_floats(o, half, factor[half], p.out.index(tile.batch(), tile.head_of(row), tile.query_of(row)),
                     live[half], zero);
    }
    if constexpr (is_16bit(cfg.out)) {
      unsigned non_finite[2] = {0, 0};
      put_rows(o, factor, non_finite);
      store_rows(first_row + 16 * warp);
      return ((live[0] ? non_finite[0] : 0) | (live[1] ? non_finite[1] : 0)) == 0;
    }
    return zero == 0.0f;
  }

 private:
  // Multiplies the output by V's descales, if these differ by channel.
  void scale_channels(float (&o)[1][v_tiles][4]) const {
    const float* const descales = p.v_scale.at(tile.batch(), head_k(tile.first_row()), 0, 0);
#pragma unroll
    for (int n = 0; n < tiles; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float descale = descales[(8 * n + static_cast<int>(threadIdx.x % 4) * 2 + i) * p.v_scale.channel];
        o[0][n][i] *= descale, o[0][n][2 + i] *= descale;
      }
  }
  unsigned short* row_address(int row) const {
    return static_cast<unsigned short*>(p.out.data) + p.out.index(tile.batch(), tile.head_of(row), tile.query_of(row));
  }
  // Returns where the 8 columns (16 bytes) of tile n + next of one of the warp's rows are in the buffer. next: 0, or 1
  // if n is even. With this swizzle, put_rows has no bank conflicts. store_rows has none if head_dim_v > 32.
  unsigned chunk(int row, int n, int next = 0) const {
    const unsigned warp = threadIdx.x / 32 % 4, line = 16 * warp + static_cast<unsigned>(row);
    return buffer + static_cast<unsigned>(n / 8 * cfg.block_m() * 128) + line * 128 +
           ((static_cast<unsigned>(n ^ next) ^ line) & 7) * 16;
  }
  // Writes the warp's 16 rows to the buffer. non_finite[half] becomes nonzero if a value of the row is not finite.
  void put_rows(const float (&o)[1][v_tiles][4], const float (&factor)[2], unsigned (&non_finite)[2]) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int n = 0; n < v_tiles; n += 2) {
      unsigned x[4];  // the 8x8 matrices of columns 8n to 8n+7 (upper and lower rows), then of the next 8 columns
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float(&from)[4] = o[0][n + i / 2];
        const int half = i % 2;
        x[i] = pack2<cfg.out>(from[2 * half] * factor[half], from[2 * half + 1] * factor[half]);
        non_finite[half] = nan_where_not_finite2<cfg.out>(x[i], non_finite[half]);
      }
      stmatrix_x4(chunk(lane % 16, n, lane / 16), x[0], x[1], x[2], x[3]);
    }
  }
  // Stores the warp's 16 rows, several at a time. first_row: the first of these rows.
  void store_rows(int first_row) const {
    constexpr int lanes = tiles > 16 ? 32 : tiles > 8 ? 16 : tiles > 4 ? 8 : 4;  // lanes per row
    const int lane = static_cast<int>(threadIdx.x % 32), n = lane % lanes;
    const int live = n < tiles ? tile.seqlen_q() - first_row : 0;
    const int row = lane / lanes;
    constexpr int steps = lanes / 2, rows = 32 / lanes;  // each step stores `rows` rows
    unsigned short* const first = static_cast<unsigned short*>(p.out.data) +
                                  p.out.index(tile.batch(), tile.head(), tile.first_q() + first_row + row) + 8 * n;
    const auto to = [&](int step) {
      if constexpr (cfg.packed_heads > 1) return row_address(first_row + row + rows * step) + 8 * n;
      return first + rows * step * p.out.row;
    };
    const int n_read = n < tiles ? n : 0;  // the other lanes store nothing
    Bytes16 x[steps];
    fence_async_proxy();  // TMA writes the next tile's Q to the same buffer
    __syncwarp();
#pragma unroll
    for (int i = 0; i < steps; ++i) x[i] = load_shared_16(chunk(row + rows * i, n_read));
    if (pass == NanPass::count_non_finite) {
#pragma unroll
      for (int i = 0; i < steps; ++i)
        if (row + rows * i < live) x[i] = nan_where_counted(x[i], to(i));
    }
#pragma unroll
    for (int i = 0; i < steps; ++i)
      if (row + rows * i < live) store_global_16(to(i), x[i]);
  }
  // For the counting pass. `counts`: the number of non-finite elements of V that each output element has seen. Returns
  // the stored elements, with NaN where this number is above 0.
  static Bytes16 nan_where_counted(const Bytes16& counts, const void* stored) {
    Bytes16 x = *static_cast<const Bytes16*>(stored);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (counts.word[i] & 0xffffu) x.word[i] = (x.word[i] & 0xffff0000u) | 0x7fffu;
      if (counts.word[i] >> 16) x.word[i] = (x.word[i] & 0xffffu) | 0x7fff0000u;
    }
    return x;
  }

  void store_floats(const float (&o)[1][v_tiles][4], int half, float factor, index_t at, bool live, float& zero) const {
    float* const to = static_cast<float*>(p.out.data) + at + 2 * (threadIdx.x % 4);
    if (!live) return;
#pragma unroll
    for (int n = 0; n < tiles; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float x = o[0][n][2 * half + i] * factor;
        zero = fmaf(x, 0.0f, zero);
        if (pass != NanPass::count_non_finite)
          to[8 * n + i] = x;
        else if (x > 0.0f)
          to[8 * n + i] = detail::float_of(0x7fffffffu);
      }
  }
};

// Sets rows past seqused_q to O = 0 and lse = -inf. The consumer warpgroups call it.
template <const Sm90Config& cfg>
inline void clear_unused(const AttentionParams& p, const RowTile<cfg>& tile) {
  constexpr int words = bytes_of(cfg.out) * cfg.head_dim_v / 16;
  const int begin = tile.first_row(), seqlen_q = tile.seqlen_q(), rows_q = tile.rows_q();
  const int first = begin > seqlen_q ? begin : seqlen_q,
            past = begin + cfg.block_m() < rows_q ? begin + cfg.block_m() : rows_q;
  for (int i = static_cast<int>(threadIdx.x) - 128; i < (past - first) * words; i += 128 * cfg.warpgroups) {
    const int row = i / words + first, query = tile.query_of(row);
    char* const to =
        static_cast<char*>(p.out.data) + bytes_of(cfg.out) * p.out.index(tile.batch(), tile.head_of(row), query);
    store_global_16(to + 16 * (i % words), Bytes16{});
    if (p.lse.present() && i % words == 0)
      static_cast<float*>(p.lse.data)[p.lse.index(tile.batch(), tile.head_of(row), query)] = minus_infinity;
  }
}

}  // namespace rapt
