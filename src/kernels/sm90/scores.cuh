// The rows of scores of a thread of attention_sm90, for the score chain (device/score_tile.cuh). Device only.
#pragma once

#include "device/score_tile.cuh"
#include "row_tile.cuh"
#include "shared/kv_view.h"

namespace rapt {

template <const Sm90Config& cfg>
struct ScoreRows {
  static constexpr bool softmax_scales = cfg.bias == DType::none && !cfg.alibi, far_positions = false,
                        exact_tanh = false, loads_mask = cfg.mask && !cfg.boxes;
  static constexpr int width = cfg.pairs || cfg.boxes ? 2 : 1;

  const AttentionParams& p;
  const RowTile<cfg>& tile;
  int row;  // the thread's scores are those of `row` and `row + 8` of the head, or of the packed heads

  ScoreRows(const AttentionParams& params, const RowTile<cfg>& row_tile, int group) : p(params), tile(row_tile) {
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32 % 4);
    row = tile.first_row() + 64 * group + 16 * warp + lane / 4;
  }

  int batch() const { return tile.batch(); }
  int offset() const { return tile.offset(); }
  int head(int, int half) const { return tile.head_of(live_row(half)); }
  int query(int, int half) const { return live_row(half) / cfg.packed_heads; }
  // The softmax scale times the descales of a row of Q, and of K if these are the same for the whole head.
  float factor(int, int half) const {
    float factor = p.scale;
    const index_t batch = tile.batch();
    if constexpr (is_tensor_core_fp8(cfg.q))
      if (p.q_scale.present()) factor *= *p.q_scale.at(batch, head(0, half), tile.first_q(), query(0, half));
    if constexpr (is_tensor_core_fp8(cfg.k) && cfg.k_descale_block == 0)
      if (p.k_scale.present()) factor *= *p.k_scale.at(batch, p.by_group.quotient(head(0, half)), 0, 0);
    return factor;
  }

 private:
  // A row past the sequence takes the values of a row that exists. Its results are not stored.
  int live_row(int half) const { return row + 8 * half < tile.seqlen_q() ? row + 8 * half : tile.first_row(); }
};

// The factors that turn the scores of a thread's two rows after the score chain into logits in base 2. Descales come
// from tensors. A factor below 2^-100 gives the same weights as 2^-100. A negative or NaN descale is invalid and gives
// NaN.
template <const Sm90Config& cfg>
struct LogitScale {
  // With packed heads, the two rows can belong to two heads, whose descales differ.
  static constexpr bool of_two_heads = is_tensor_core_fp8(cfg.q) && 8 % cfg.packed_heads != 0,
                        by_row = (cfg.q_row_descales || of_two_heads) && ScoreRows<cfg>::softmax_scales && !cfg.softcap;
  float factor[by_row ? 2 : 1];

  float of(int half) const { return factor[by_row ? half : 0]; }
  static LogitScale of(const ScoreRows<cfg>& rows) {
    LogitScale scale;
#pragma unroll
    for (int half = 0; half < (by_row ? 2 : 1); ++half) scale.factor[half] = factor_of(rows, half);
    return scale;
  }

 private:
  static float factor_of(const ScoreRows<cfg>& rows, int half) {
    if constexpr (!ScoreRows<cfg>::softmax_scales) return log2_e;
    if constexpr (cfg.softcap) return rows.p.softcap * log2_e;
    const float c = rows.factor(0, half) * log2_e;
    if constexpr (!has_score_descales(cfg.q, cfg.k)) return c;
    return c >= 0.0f ? fminf(fmaxf(c, 0x1p-100f), largest_finite) : minus_infinity - minus_infinity;
  }
};

constexpr int common_divisor(int a, int b) { return b == 0 ? a : common_divisor(b, a % b); }

// Multiplies scores by the descales of their keys, if these differ within a head.
template <const Sm90Config& cfg, int n_tiles>
inline void scale_by_key(const AttentionParams& p, const RowTile<cfg>& tile, float (&s)[1][n_tiles][4], int key) {
  const index_t batch = tile.batch(), head_k = p.by_group.quotient(static_cast<unsigned>(tile.head()));
  const index_t first_k = p.cu_seqlens_k.present() ? clamped(p.cu_seqlens_k[batch], 0, p.total_k) : 0;
  const int last = tile.band().seqlen_k - 1;
  const auto descale_of = [&](int at) {
    return *kv_descale(p, p.k_scale, batch, head_k, first_k, at < last ? at : last);
  };
  if constexpr (cfg.k_descale_block == 1) {
    key += static_cast<int>(threadIdx.x % 4) * 2;
#pragma unroll
    for (int n = 0; n < n_tiles; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float descale = descale_of(key + 8 * n + i);
        s[0][n][i] *= descale, s[0][n][2 + i] *= descale;
      }
  } else {
    // Blocks of keys and blocks of descales both begin at multiples of this number of keys.
    constexpr int together = common_divisor(cfg.block_n, cfg.k_descale_block);
#pragma unroll
    for (int first = 0; first < cfg.block_n; first += together) {
      const float descale = descale_of(key + first);
#pragma unroll
      for (int n = first / 8; n < (first + together) / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) s[0][n][i] *= descale;
    }
  }
}

}  // namespace rapt
