// Operands of attention_sm80's two products as they come from shared memory: 16-bit elements, FP8 codes for FP8
// instructions, and codes that are widened to 16 bits on the way, which is exact. Device only. Q.K^T sums over channels
// and P.V over keys, so either may be visited in any order that both operands share: codes are taken four and four as
// they lie, and the other operand follows.
#pragma once

#include "../shared/sm80.h"
#include "accumulator.cuh"
#include "softmax.cuh"
#include "tile.cuh"

namespace rapt {

// One step of Q.K^T for `tiles` n-tiles of 8 keys: 32 bytes of K's rows, or 16 codes of twice as many keys that are
// widened. Of channels 4t..4t+3 of 16 a lane then takes the first two as elements 2t, 2t+1 and the others as 8+2t,
// 9+2t.
template <AttentionConfig cfg>
struct KeyFragments {
  static constexpr Sm80Layout layout{cfg};
  static constexpr int tiles = layout.widens_k ? 4 : 2, chunks = layout.widens_k ? 1 : 2;  // of 16 bytes
  unsigned b[tiles][2];

  static int row_of(int lane) { return layout.widens_k ? lane : lane % 8 + lane / 16 * 8; }
  static int chunk_of(int lane) { return layout.widens_k ? 0 : lane / 8 % 2; }

  template <class Address>
  void load(const Address& address, int step, int tile) {
    unsigned r[4];
    ldmatrix_x4(r, address.at(tile * 8, step * chunks));
    for (int i = 0; i < 4; ++i) {
      if constexpr (layout.widens_k)
        widen4<cfg.k, layout.score>(r[i], b[i][0], b[i][1]);
      else
        b[i / 2][i % 2] = r[i];
    }
  }
};

// Q's tile once it has arrived: codes are widened, and channels brought into the order in which widened keys have them.
// All threads of the block call it, and all rows are ready when it returns.
template <AttentionConfig cfg, class Tile>
struct QueryTile {
  static constexpr Sm80Layout layout{cfg};
  static constexpr bool needs_rewriting = layout.widens_q || layout.widens_k;
  static constexpr int groups = layout.dim / 16, all = cfg.block_m * groups;  // of 16 channels

  // Codes are copied to the second half of the tile. Rows are widened in order: row r takes the place of codes of rows
  // before it and its own, which are read by then.
  using Codes = SmemTile<cfg.block_m, layout.dim>;
  static constexpr int codes_at = Tile::bytes - Codes::bytes;

  static void rewrite(unsigned tile, int thread) {
#pragma unroll 1
    for (int first = 0; first < all; first += cfg.threads()) {
      unsigned words[8];
      read(tile, first + thread, words);
      if constexpr (layout.widens_q) __syncthreads();
      write(tile, first + thread, words);
    }
    __syncthreads();
  }

 private:
  static void read(unsigned tile, int at, unsigned (&words)[8]) {
    if (all % cfg.threads() != 0 && at >= all) return;
    const int row = at / groups, group = at % groups;
    if constexpr (layout.widens_q) {
      const Bytes16 codes = load_shared_16(tile + codes_at + Codes::offset(row, group));
      for (int i = 0; i < 4; ++i) widen4<cfg.q, layout.score>(codes.word[i], words[2 * i], words[2 * i + 1]);
    } else {
      const Bytes16 low = load_shared_16(tile + Tile::offset(row, 2 * group)),
                    high = load_shared_16(tile + Tile::offset(row, 2 * group + 1));
      for (int i = 0; i < 4; ++i) words[i] = low.word[i], words[4 + i] = high.word[i];
    }
  }
  static void write(unsigned tile, int at, const unsigned (&words)[8]) {
    if (all % cfg.threads() != 0 && at >= all) return;
    const int row = at / groups, group = at % groups;
    Bytes16 low, high;
    for (int i = 0; i < 4; ++i) {
      low.word[i] = words[layout.widens_k ? 2 * i : i];
      high.word[i] = words[layout.widens_k ? 2 * i + 1 : 4 + i];
    }
    store_shared_16(tile + Tile::offset(row, 2 * group), low);
    store_shared_16(tile + Tile::offset(row, 2 * group + 1), high);
  }
};

// One step of V: `keys` keys of `tiles` accumulator tiles, 8 channels each. Codes come transposed in pairs of channels,
// so of 16 channels the even ones make one tile and the odd ones the next (column()).
template <AttentionConfig cfg>
struct ValueFragments {
  static constexpr Sm80Layout layout{cfg};
  static constexpr int keys = cfg.p_terms > 0 ? 32 : 16, tiles = layout.widens_v ? 4 : 2;
  unsigned b[tiles][2];

  // Where a lane reads: 16 keys x 2 chunks, or 32 keys x 1.
  static int row_of(int lane) { return cfg.p_terms > 0 ? lane : lane % 16; }
  static int chunk_of(int lane) { return cfg.p_terms > 0 ? 0 : lane / 16; }

  template <class Address>
  void load(const Address& address, int step, int tile) {
    unsigned r[4];
    ldmatrix_x4_trans(r, address.at(step * keys, layout.v_codes ? tile / 2 : tile));
    if constexpr (!layout.v_codes) {
      for (int i = 0; i < 4; ++i) b[i / 2][i % 2] = r[i];
    } else if constexpr (layout.widens_v) {
      for (int i = 0; i < 4; ++i) {  // chunk i / 2, keys 8 (i % 2) and up
        widen4<cfg.v, layout.value>(byte_perm(r[i], 0, 0x3120), b[i / 2 * 2][i % 2], b[i / 2 * 2 + 1][i % 2]);
      }
    } else {
      for (int i = 0; i < 2; ++i) {  // keys 16 i and up: 2t, 2t+1, 8+2t, 9+2t, as WeightFragments has them
        b[0][i] = byte_perm(r[2 * i], r[2 * i + 1], 0x6420);
        b[1][i] = byte_perm(r[2 * i], r[2 * i + 1], 0x7531);
      }
    }
  }
};

// A fragments of P for `keys` of the warp's keys: accumulator tiles of scores are operand tiles as they lie. In FP8 as
// one or two E4M3 terms, the second what the first leaves of a weight.
template <AttentionConfig cfg>
struct WeightFragments {
  static constexpr Sm80Layout layout{cfg};
  static constexpr int terms = cfg.p_terms > 0 ? cfg.p_terms : 1;
  unsigned a[terms][4];

  // Of the scores s of one m-tile, [n-tile][element].
  template <int n_tiles>
  void read(const float (&s)[n_tiles][4], int step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (cfg.p_terms == 0) {
        const float(&from)[4] = s[2 * step + i / 2];
        a[0][i] = pack2<layout.value>(from[i % 2 * 2], from[i % 2 * 2 + 1]);
      } else {
        const float(&first)[4] = s[4 * step + i / 2 * 2], (&second)[4] = s[4 * step + i / 2 * 2 + 1];
        unsigned low[terms], high[terms];
        pack_terms(first[i % 2 * 2], first[i % 2 * 2 + 1], low);
        pack_terms(second[i % 2 * 2], second[i % 2 * 2 + 1], high);
        for (int t = 0; t < terms; ++t) a[t][i] = low[t] | high[t] << 16;
      }
    }
  }

 private:
  static void pack_terms(float x, float y, unsigned (&codes)[terms]) {
    codes[0] = pack_e4m3x2(x, y);
    if constexpr (terms == 2) {
      const unsigned taken = widen2<DType::e4m3, DType::f16>(codes[0]);
      codes[1] = pack_e4m3x2(x - f16_to_f32(static_cast<unsigned short>(taken)),
                             y - f16_to_f32(static_cast<unsigned short>(taken >> 16)));
    }
  }
};

// sum += a * b by the instruction of the operands' formats.
template <AttentionConfig cfg, class Sum>
inline void multiply_scores(Sum& sum, const unsigned (&a)[4], unsigned b0, unsigned b1) {
  if constexpr (cfg.fp8_scores)
    mma_m16n8k32<cfg.q, cfg.k>(sum.sum, a, b0, b1);
  else
    sum.template mma<Sm80Layout(cfg).score>(a, b0, b1);
}
template <AttentionConfig cfg, bool in_f16>
inline void multiply_values(Accumulator<in_f16>& sum, const unsigned (&a)[4], const unsigned (&b)[2]) {
  if constexpr (cfg.p_terms > 0)
    mma_m16n8k32<DType::e4m3, cfg.v>(sum.sum, a, b[0], b[1]);
  else
    sum.template mma<Sm80Layout(cfg).value>(a, b[0], b[1]);
}
template <AttentionConfig cfg>
inline void multiply_values(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  if constexpr (cfg.p_terms > 0)
    mma_m16n8k32<DType::e4m3, cfg.v>(sum, a, b[0], b[1]);
  else
    mma_m16n8k16<Sm80Layout(cfg).value>(sum, a, b[0], b[1]);
}

// Channels of the accumulator elements of n-tiles 2 * pair and 2 * pair + 1, two neighbours at a time (i = 0, 1).
template <AttentionConfig cfg>
struct ChannelPair {
  float x, y;
  int column;  // of x; y is the next

  ChannelPair(const float (&even)[4], const float (&odd)[4], int pair, int i, int half, int lane) {
    if constexpr (Sm80Layout(cfg).v_codes) {
      x = even[2 * half + i], y = odd[2 * half + i];
      column = pair * 16 + lane % 4 * 4 + 2 * i;
    } else {
      x = i == 0 ? even[2 * half] : odd[2 * half];
      y = i == 0 ? even[2 * half + 1] : odd[2 * half + 1];
      column = pair * 16 + 8 * i + lane % 4 * 2;
    }
  }
};

}  // namespace rapt
