// The rows of scores of a thread of attention_sm80, for the score chain (device/score_tile.cuh). Device only.
#pragma once

#include "device/score_tile.cuh"
#include "sm80.h"

namespace rapt {

// Cta: AttentionSm80. RowScales: its QRowScales.
template <const Sm80Config& cfg, class Cta, class RowScales>
struct ScoreRows {
  static constexpr bool softmax_scales = cfg.scale_in_exp2, far_positions = cfg.far_positions, loads_mask = cfg.mask,
                        exact_tanh = Sm80Layout(cfg).tf32_pv;
  static constexpr int width = cfg.octets ? 8 : cfg.pairs ? 2 : 1;
  const Cta& tile;
  const RowScales& scales;

  int batch() const { return tile.cta.batch; }
  index_t offset() const { return tile.offset; }
  int head(int mt, int half) const { return head_of<cfg>(tile.p, tile.cta, row(mt, half)); }
  int query(int mt, int half) const { return query_of<cfg>(tile.p, row(mt, half)); }
  float factor(int mt, int half) const { return tile.scale * scales.at(mt, half); }

 private:
  int row(int mt, int half) const {
    const int row = tile.opaque_first_row() + tile.opaque_lane() / 4 + mt * 16 + 8 * half;
    return row < tile.cta.seqlen_q ? row : tile.cta.first_row;
  }
};

}  // namespace rapt
