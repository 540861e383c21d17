// Operand fragments of QK^T and PV, loaded from shared memory. They hold 16-bit elements, FP8 for FP8 mma, or FP8
// converted to 16 bits, which is exact. Device only. The summed dimension (channels in QK^T, keys in PV) can have any
// order if both operands have the same order. Therefore FP8 elements stay in the groups of four in which they are in
// memory, and the other operand is permuted to the same order.
#pragma once

#include "accumulator.cuh"
#include "device/softmax.cuh"
#include "device/tile.cuh"
#include "sm80.h"

namespace rapt {

// B fragments of K for one k-step of QK^T and `tiles` n-tiles of 8 keys. They hold 32 bytes of each row, or 16 FP8
// elements of each row if these are converted to 16 bits. Of 16 converted channels, lane t of a quad has
// channels 4t to 4t+3. They become the elements 2t, 2t+1, 8+2t and 9+2t.
template <const Sm80Config& cfg>
struct KFragment {
  static constexpr Sm80Layout layout{cfg};
  static constexpr int tiles = layout.widens_k ? 4 : 2, chunks = layout.widens_k ? 1 : 2;  // 16 bytes each
  unsigned b[tiles][2];

  static int row_of(int lane) { return layout.widens_k ? lane : lane % 8 + lane / 16 * 8; }
  static int chunk_of(int lane) { return layout.widens_k ? 0 : lane / 8 % 2; }

  template <class Address>
  void load(const Address& address, int step, int tile) {
    unsigned r[4];
    ldmatrix_x4(r, address.at(tile * 8, step * chunks));
    for (int i = 0; i < 4; ++i) {
      if constexpr (layout.widens_k)
        widen4<cfg.k, layout.qk_dtype>(r[i], b[i][0], b[i][1]);
      else
        b[i / 2][i % 2] = r[i];
    }
  }
};

// Rewrites the Q tile in shared memory after it has arrived: converts FP8 to 16 bits, and permutes channels into the
// order of converted K. All threads of the CTA call rewrite(), which ends with a barrier.
template <const Sm80Config& cfg, class Tile>
struct QTileRewrite {
  static constexpr Sm80Layout layout{cfg};
  static constexpr bool needs_rewriting = layout.widens_q || layout.widens_k;

  // FP8 Q is copied to the second half of the tile. Rows are converted in order. Row r overwrites only FP8 rows up to
  // r, which have been read by then.
  using Codes = SmemTile<cfg.block_m, layout.dim>;
  static constexpr int codes_at = Tile::bytes - Codes::bytes;

  // With rescales_q, writes to row_scales_smem the power of two by which the products of each row must be multiplied.
  static void rewrite(unsigned tile, unsigned row_scales_smem, int thread) {
    if constexpr (layout.rescales_q)
      rescale_rows(tile, row_scales_smem, thread);
    else
      widen_and_permute(tile, thread);
    __syncthreads();
  }

 private:
  // Returns the offset of word `word` (two channels) of a row, in the order of converted K. In this order the 8 words
  // of 16 channels alternate between two chunks.
  static int offset(int row, int word) {
    const int group = word / 8, i = word % 8;
    return layout.widens_k ? Tile::offset(row, 2 * group + i % 2) + i / 2 * 4 : Tile::offset(row, word / 4) + i % 4 * 4;
  }

  // Each thread takes 16 channels at a time.
  static void widen_and_permute(unsigned tile, int thread) {
    constexpr int groups = layout.dim / 16, all = cfg.block_m * groups;
#pragma unroll 1
    for (int first = 0; first < all; first += cfg.threads()) {
      const int row = (first + thread) / groups, group = (first + thread) % groups;
      const bool live = all % cfg.threads() == 0 || first + thread < all;
      unsigned words[8];
      if (live) read_group(tile, row, group, words);
      if constexpr (layout.widens_q) __syncthreads();
      if (!live) continue;
#pragma unroll
      for (int i = 0; i < 8; ++i) store_shared(tile + offset(row, 8 * group + i), words[i]);
    }
  }
  static void read_group(unsigned tile, int row, int group, unsigned (&words)[8]) {
    if constexpr (layout.widens_q) {
      const Bytes16 codes = load_shared_16(tile + codes_at + Codes::offset(row, group));
#pragma unroll
      for (int i = 0; i < 4; ++i) widen4<cfg.q, layout.qk_dtype>(codes.word[i], words[2 * i], words[2 * i + 1]);
    } else {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Bytes16 chunk = load_shared_16(tile + Tile::offset(row, 2 * group + half));
#pragma unroll
        for (int i = 0; i < 4; ++i) words[4 * half + i] = chunk.word[i];
      }
    }
  }

  // Converts bf16 rows to f16, one warp per row. The row is multiplied by the power of two that brings its largest
  // finite element to [2^14, 2^15). Elements below 2^-39 times the largest one are lost, which is far less than the
  // rounding error of an f32 sum.
  static void rescale_rows(unsigned tile, unsigned row_scales_smem, int thread) {
    constexpr int words = layout.dim / 2, each = (words + 31) / 32;
    const int lane = thread % 32;
#pragma unroll 1
    for (int row = thread / 32; row < cfg.block_m; row += cfg.threads() / 32) {
      float x[each][2], largest = 0.0f;
#pragma unroll
      for (int n = 0; n < each; ++n) {
        const int at = n * 32 + lane;
        const bool live = words % 32 == 0 || at < words;
        const unsigned pair = live ? load_shared(tile + Tile::offset(row, at / 4) + at % 4 * 4) : 0u;
        for (int i = 0; i < 2; ++i) {
          x[n][i] = bf16_to_float(static_cast<unsigned short>(pair >> 16 * i));
          if (fabsf(x[n][i]) <= largest_finite) largest = fmaxf(largest, fabsf(x[n][i]));
        }
      }
      for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
      const unsigned exponent = detail::bits_of(largest) >> 23;  // biased, at most 254
      const float scale_up =
          detail::float_of((268u - (exponent < 16 ? 16u : exponent)) << 23);  // its inverse is normal
#pragma unroll
      for (int n = 0; n < each; ++n) {
        const int at = n * 32 + lane;
        if (words % 32 == 0 || at < words)
          store_shared(tile + offset(row, at), pack_f16x2(x[n][0] * scale_up, x[n][1] * scale_up));
      }
      if (lane == 0) store_shared(row_scales_smem + 4 * row, detail::bits_of(1.0f / scale_up));
    }
  }
};

// B fragments of V for one k-step of PV: `keys` keys and `tiles` n-tiles of 8 channels. ldmatrix transposes pairs of
// FP8 channels together. So the even channels of 16 form one n-tile, and the odd channels form the next (ChannelPair).
template <const Sm80Config& cfg>
struct VFragment {
  static constexpr Sm80Layout layout{cfg};
  static constexpr int keys = cfg.fp8_pv ? 32 : 16, tiles = layout.widens_v ? 4 : 2;
  unsigned b[tiles][2];

  // Return the lane's row and chunk for ldmatrix. The lanes cover 16 keys x 2 chunks, or with fp8_pv 32 keys x 1 chunk.
  static int row_of(int lane) { return cfg.fp8_pv ? lane : lane % 16; }
  static int chunk_of(int lane) { return cfg.fp8_pv ? 0 : lane / 16; }

  template <class Address>
  void load(const Address& address, int step, int tile) {
    unsigned r[4];
    ldmatrix_x4_trans(r, address.at(step * keys, layout.v_codes ? tile / 2 : tile));
    if constexpr (!layout.v_codes) {
      for (int i = 0; i < 4; ++i) b[i / 2][i % 2] = r[i];
    } else if constexpr (layout.widens_v) {
      for (int i = 0; i < 4; ++i) {  // chunk i / 2, keys from 8 * (i % 2) on
        widen4<cfg.v, layout.pv_dtype>(byte_perm(r[i], 0, 0x3120), b[i / 2 * 2][i % 2], b[i / 2 * 2 + 1][i % 2]);
      }
    } else {
      for (int i = 0; i < 2; ++i) {  // keys 16 * i plus 2t, 2t+1, 8+2t, 9+2t, as in PFragment
        b[0][i] = byte_perm(r[2 * i], r[2 * i + 1], 0x6420);
        b[1][i] = byte_perm(r[2 * i], r[2 * i + 1], 0x7531);
      }
    }
  }
};

// A fragments of P. The C fragments of the scores have the layout of A fragments, so no shuffles are needed. With
// p_terms, P is rounded to one or two E4M3 terms. The second term holds the rounding error of the first. FP8 mma
// multiplies each term on its own; 16-bit mma multiplies their sum.
template <const Sm80Config& cfg>
struct PFragment {
  static constexpr Sm80Layout layout{cfg};
  static constexpr int terms = cfg.fp8_pv ? cfg.p_terms : 1;
  unsigned a[terms][4];

  // s: the weights of one m-tile, [n-tile][element].
  template <int n_tiles>
  void read(const float (&s)[n_tiles][4], int step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (!cfg.fp8_pv) {
        const float(&from)[4] = s[2 * step + i / 2];
        a[0][i] = pack(from[i % 2 * 2], from[i % 2 * 2 + 1]);
      } else {
        const float(&first)[4] = s[4 * step + i / 2 * 2], (&second)[4] = s[4 * step + i / 2 * 2 + 1];
        unsigned low[2], high[2];
        pack_terms(first[i % 2 * 2], first[i % 2 * 2 + 1], low);
        pack_terms(second[i % 2 * 2], second[i % 2 * 2 + 1], high);
        for (int t = 0; t < terms; ++t) a[t][i] = low[t] | high[t] << 16;
      }
    }
  }

 private:
  static Float2 widened(unsigned codes) {
    const unsigned both = widen2<DType::e4m3, DType::f16>(codes);
    return {f16_to_f32(static_cast<unsigned short>(both)), f16_to_f32(static_cast<unsigned short>(both >> 16))};
  }
  static void pack_terms(float x, float y, unsigned (&codes)[2]) {
    codes[0] = pack_e4m3x2(x, y);
    if constexpr (cfg.p_terms == 2) {
      const Float2 taken = widened(codes[0]);
      codes[1] = pack_e4m3x2(x - taken.x, y - taken.y);
    }
  }
  static unsigned pack(float x, float y) {
    if constexpr (cfg.p_terms == 0) return pack2<layout.pv_dtype>(x, y);
    unsigned codes[2];
    pack_terms(x, y, codes);
    if constexpr (cfg.p_terms == 1) return widen2<DType::e4m3, layout.pv_dtype>(codes[0]);
    const Float2 first = widened(codes[0]), second = widened(codes[1]);
    return pack2<layout.pv_dtype>(first.x + second.x, first.y + second.y);
  }
};

// sum += a * b by the mma instruction for the operand types.
template <const Sm80Config& cfg, bool in_f16>
inline void mma_qk_atom(Accumulator<in_f16>& sum, const unsigned (&a)[4], unsigned b0, unsigned b1) {
  if constexpr (cfg.fp8_qk)
    mma_m16n8k32<cfg.q, cfg.k>(sum.sum, a, b0, b1);
  else
    sum.template mma<Sm80Layout(cfg).qk_dtype>(a, b0, b1);
}
template <const Sm80Config& cfg>
inline void mma_qk_atom(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  if constexpr (cfg.fp8_qk)
    mma_m16n8k32<cfg.q, cfg.k>(sum, a, b0, b1);
  else
    mma_m16n8k16<Sm80Layout(cfg).qk_dtype>(sum, a, b0, b1);
}
template <const Sm80Config& cfg, bool in_f16>
inline void mma_pv_atom(Accumulator<in_f16>& sum, const unsigned (&a)[4], const unsigned (&b)[2]) {
  if constexpr (cfg.fp8_pv)
    mma_m16n8k32<DType::e4m3, cfg.v>(sum.sum, a, b[0], b[1]);
  else
    sum.template mma<Sm80Layout(cfg).pv_dtype>(a, b[0], b[1]);
}
template <const Sm80Config& cfg>
inline void mma_pv_atom(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  if constexpr (cfg.fp8_pv)
    mma_m16n8k32<DType::e4m3, cfg.v>(sum, a, b[0], b[1]);
  else
    mma_m16n8k16<Sm80Layout(cfg).pv_dtype>(sum, a, b[0], b[1]);
}

// Two neighbouring output channels, from the C fragments of n-tiles 2 * pair and 2 * pair + 1. i: 0 or 1.
template <const Sm80Config& cfg>
struct ChannelPair {
  float x, y;
  int column;  // channel of x; y is the next channel

  ChannelPair(const float (&even)[4], const float (&odd)[4], int pair, int i, int half, int lane) {
    if constexpr (Sm80Layout(cfg).v_codes || Sm80Layout(cfg).tf32_pv) {
      // Of each group of 8 * width channels, n-tile j has the channels j, j + width, ... (VFragment, ValueAddress).
      constexpr int width = Sm80Layout(cfg).lane_channels();
      x = even[2 * half + i], y = odd[2 * half + i];
      column = pair / (width / 2) * 8 * width + (lane % 4 * 2 + i) * width + pair % (width / 2) * 2;
    } else {
      x = i == 0 ? even[2 * half] : odd[2 * half];
      y = i == 0 ? even[2 * half + 1] : odd[2 * half + 1];
      column = pair * 16 + 8 * i + lane % 4 * 2;
    }
  }
};

// Loads a warp's rows of Q, which stay in registers during the main loop.
template <class Address, int m_tiles, int k_steps>
inline void load_q_fragments(unsigned (&q)[m_tiles][k_steps][4], const Address& rows) {
#pragma unroll
  for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
    for (int kk = 0; kk < k_steps; ++kk) ldmatrix_x4(q[mt][kk], rows.at(mt * 16, 2 * kk));
}

}  // namespace rapt
