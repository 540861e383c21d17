// Epilogue of a consumer warpgroup's 64 rows: adds row sums over lanes, applies the sink, stores O and lse. Device
// only.
#pragma once

#include "device/softmax.cuh"
#include "ptx/copy.cuh"
#include "row_tile.cuh"
#include "softmax.cuh"

namespace rapt {

// A 4 x 4 transposition among the lanes of a quad: lane q has w[i] = M[i][q], and gets w[i] = M[q][i].
inline void transpose_quad(unsigned (&w)[4]) {
  const unsigned q = threadIdx.x % 4;
  const auto swap = [&](int low, int high, int mask, bool upper) {
    const unsigned got = __shfl_xor_sync(~0u, upper ? w[low] : w[high], mask);
    if (upper)
      w[low] = got;
    else
      w[high] = got;
  };
  swap(0, 1, 1, q & 1), swap(2, 3, 1, q & 1);
  swap(0, 2, 2, q & 2), swap(1, 3, 2, q & 2);
}

template <Sm90Config cfg>
struct Epilogue {
  static constexpr int v_tiles = Sm90Layout(cfg).dim_v / 8, tiles = (cfg.head_dim_v + 7) / 8;  // of eight columns

  const AttentionParams& p;
  const RowTile<cfg>& tile;
  const NanPass pass;

  struct RowResult {
    float factor, lse;  // output = factor * accumulated output
  };

  // Adds the sink. A row without visible keys gets O = 0 and lse = -inf.
  RowResult finalize_row(const RowSoftmax& softmax, int half) const {
    float sum = quad_sum(softmax.row_sum[half]), share = 1.0f;
    float top = RowSoftmax::Rules::natural_logit(softmax.row_max[half], softmax.c);
    if (p.sinks != nullptr) {
      const float sink = p.sinks[tile.head() * p.sinks_head], higher = fmaxf(top, sink);
      const float base = higher == minus_infinity ? 0.0f : higher, moved = exp2_approx((top - base) * log2_e);
      sum = sum * moved + exp2_approx((sink - base) * log2_e);
      share = moved;
      top = higher;
    }
    if (sum == 0.0f) return {0.0f, minus_infinity};
    return {__fdividef(share, sum), top + log2_approx(sum) * ln_2};
  }

  // Stores this thread's parts of two rows. first_row: the first row of the warpgroup. Returns whether all stored
  // values are finite.
  bool store(const RowSoftmax& softmax, const float (&o)[1][v_tiles][4], int first_row) const {
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32 % 4);
    float finite = 0.0f;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + 16 * warp + lane / 4 + 8 * half;
      const bool live = row < tile.seqlen_q();
      const RowResult end = finalize_row(softmax, half);
      const bool counts = pass == NanPass::count_non_finite;
      const float factor = counts ? 1.0f : end.factor;
      if (lane % 4 == 0 && live && !counts && p.lse.present())
        static_cast<float*>(p.lse.data)[p.lse.index(tile.batch(), tile.head(), tile.first_q() + row)] = end.lse;
      const index_t at = p.out.index(tile.batch(), tile.head(), tile.first_q() + row);
      if constexpr (is_16bit(cfg.out))
        store_packed(o, half, factor, at, live, finite);
      else
        store_floats(o, half, factor, at, live, finite);
    }
    return finite == 0.0f;
  }

 private:
  // Each lane stores 16 bytes: the quad's lanes exchange words, so that each has one of four tiles of 8 columns.
  void store_packed(const float (&o)[1][v_tiles][4], int half, float factor, index_t at, bool live,
                    float& finite) const {
    unsigned short* const to = static_cast<unsigned short*>(p.out.data) + at;
    const int q = static_cast<int>(threadIdx.x % 4);
    float zero = 0.0f;  // becomes NaN if a value is not finite
#pragma unroll
    for (int n = 0; n < tiles; n += 4) {
      Bytes16 x;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int t = n + i < v_tiles ? n + i : v_tiles - 1;
        const float a = o[0][t][2 * half] * factor, b = o[0][t][2 * half + 1] * factor;
        if (n + i < tiles) zero = fmaf(a, 0.0f, fmaf(b, 0.0f, zero));
        x.word[i] = pack2<cfg.out>(a, b);
      }
      transpose_quad(x.word);
      if (!live || n + q >= tiles) continue;
      if (pass == NanPass::count_non_finite) x = nan_where_counted(x, to + 8 * (n + q));
      store_global_16(to + 8 * (n + q), x);
    }
    if (live) finite += zero;
  }
  // In the counting pass, `counts` holds counts. Returns the stored elements, with NaN for those that have a count.
  static Bytes16 nan_where_counted(const Bytes16& counts, const void* stored) {
    Bytes16 x = *static_cast<const Bytes16*>(stored);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (counts.word[i] & 0xffffu) x.word[i] = (x.word[i] & 0xffff0000u) | 0x7fffu;
      if (counts.word[i] >> 16) x.word[i] = (x.word[i] & 0xffffu) | 0x7fff0000u;
    }
    return x;
  }

  void store_floats(const float (&o)[1][v_tiles][4], int half, float factor, index_t at, bool live,
                    float& finite) const {
    float* const to = static_cast<float*>(p.out.data) + at + 2 * (threadIdx.x % 4);
    if (!live) return;
#pragma unroll
    for (int n = 0; n < tiles; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float x = o[0][n][2 * half + i] * factor;
        finite = fmaf(x, 0.0f, finite);
        if (pass != NanPass::count_non_finite)
          to[8 * n + i] = x;
        else if (x > 0.0f)
          to[8 * n + i] = detail::float_of(0x7fffffffu);
      }
  }
};

// Sets rows past seqused_q to O = 0 and lse = -inf. For the consumer warpgroups.
template <Sm90Config cfg>
inline void clear_unused(const AttentionParams& p, const RowTile<cfg>& tile) {
  constexpr int words = bytes_of(cfg.out) * cfg.head_dim_v / 16;
  const int begin = tile.first_row(), seqlen_q = tile.seqlen_q(), rows_q = tile.rows_q();
  const int first = begin > seqlen_q ? begin : seqlen_q,
            past = begin + cfg.block_m() < rows_q ? begin + cfg.block_m() : rows_q;
  for (int i = static_cast<int>(threadIdx.x) - 128; i < (past - first) * words; i += 128 * cfg.warpgroups) {
    const int row = tile.first_q() + first + i / words;
    char* const to = static_cast<char*>(p.out.data) + bytes_of(cfg.out) * p.out.index(tile.batch(), tile.head(), row);
    store_global_16(to + 16 * (i % words), Bytes16{});
    if (p.lse.present() && i % words == 0)
      static_cast<float*>(p.lse.data)[p.lse.index(tile.batch(), tile.head(), row)] = minus_infinity;
  }
}

}  // namespace rapt
