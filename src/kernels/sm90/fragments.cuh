// Operations on the fragments of wgmma that a thread of attention_sm90 holds. Device only.
#pragma once

#include "device/numeric.cuh"
#include "device/softmax.cuh"
#include "sm90.h"

namespace rapt {

// The A operand of PV: the weights in 16 bits, or as one or two E4M3 terms. The second term holds the rounding error of
// the first.
template <const Sm90Config& cfg>
struct Weights {
  static constexpr int terms = cfg.p_terms > 0 ? cfg.p_terms : 1, n_tiles = cfg.block_n / 8,
                       tiles_of_step = cfg.p_terms > 0 ? 4 : 2, steps = n_tiles / tiles_of_step;
  unsigned term[terms][steps][4];

  // s: weights in the layout of accumulators. The 16-bit operand has the same layout. An FP8 register holds keys of two
  // tiles of eight; V has the same order of keys (slot_key).
  void pack(const float (&s)[1][n_tiles][4]) {
#pragma unroll
    for (int step = 0; step < steps; ++step)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int half = i % 2 * 2, first = step * tiles_of_step + i / 2 * (tiles_of_step / 2);
        if constexpr (cfg.p_terms == 0) {
          term[0][step][i] = pack2<cfg.weight_type()>(s[0][first][half], s[0][first][half + 1]);
        } else {
          unsigned low[2], high[2];
          pack_terms(s[0][first][half], s[0][first][half + 1], low);
          pack_terms(s[0][first + 1][half], s[0][first + 1][half + 1], high);
#pragma unroll
          for (int t = 0; t < terms; ++t) term[t][step][i] = low[t] | high[t] << 16;
        }
      }
  }

 private:
  static void pack_terms(float x, float y, unsigned (&codes)[2]) {
    codes[0] = pack_e4m3x2(x, y);
    if constexpr (cfg.p_terms == 2) {
      const unsigned taken = widen2<DType::e4m3, DType::f16>(codes[0]);
      codes[1] = pack_e4m3x2(x - f16_to_f32(static_cast<unsigned short>(taken)),
                             y - f16_to_f32(static_cast<unsigned short>(taken >> 16)));
    }
  }
};

// Multiplies the two rows of an output fragment by their factors.
template <int tiles>
inline void rescale(float (&o)[1][tiles][4], const float (&factors)[2]) {
#pragma unroll
  for (int n = 0; n < tiles; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) o[0][n][i] *= factors[i / 2];
}

template <int tiles>
inline void set_zero(float (&o)[1][tiles][4]) {
#pragma unroll
  for (int n = 0; n < tiles; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) o[0][n][i] = 0.0f;
}

}  // namespace rapt
