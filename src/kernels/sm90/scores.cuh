// The rows of scores of a thread of attention_sm90, for the score chain (device/score_tile.cuh). Device only.
#pragma once

#include "device/score_tile.cuh"
#include "row_tile.cuh"

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
  float factor(int, int) const { return p.scale; }

 private:
  // A row past the sequence takes the values of a row that exists. Its results are not stored.
  int live_row(int half) const { return row + 8 * half < tile.seqlen_q() ? row + 8 * half : tile.first_row(); }
};

// The factor that turns the scores after the score chain into logits in base 2.
template <const Sm90Config& cfg>
float softmax_scale_log2(const AttentionParams& p) {
  return (!ScoreRows<cfg>::softmax_scales ? 1.0f : cfg.softcap ? p.softcap : p.scale) * log2_e;
}

}  // namespace rapt
