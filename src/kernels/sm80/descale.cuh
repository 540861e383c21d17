// Descales of FP8 tensors. Descales of a whole tensor or head are multiplied into the softmax scale and into the
// output. Descales that differ by row or by key are applied to mma accumulator fragments. Device only.
#pragma once

#include "cta_tile.cuh"
#include "device/softmax.cuh"
#include "ptx/copy.cuh"
#include "shared/kv_view.h"
#include "sm80.h"

namespace rapt {

// The softmax scale times the descales that are the same for the whole head.
template <const Sm80Config& cfg>
inline float uniform_scale(const AttentionParams& p, const CtaTile& cta) {
  float factor = p.scale;
  if (is_tensor_core_fp8(cfg.q) && !cfg.q_row_descales && p.q_scale.present())
    factor *= *p.q_scale.at(cta.batch, cta.head, 0, 0);
  if (is_tensor_core_fp8(cfg.k) && cfg.k_descale_block == 0 && p.k_scale.present())
    factor *= *p.k_scale.at(cta.batch, cta.head_k, 0, 0);
  return factor;
}

// Returns scale * log2(e), clamped to positive normal numbers, which OnlineSoftmax requires. A smaller scale gives the
// same result as a scale of 0: every weight is 1. A negative or NaN descale is invalid and gives NaN.
inline float exp2_scale(float scale) {
  const float c = scale * log2_e;
  return c >= 0.0f ? fminf(fmaxf(c, smallest_normal), largest_finite) : minus_infinity - minus_infinity;
}

// Per-row descales of Q for the rows of a lane.
template <bool present, int m_tiles_>
struct QRowScales {
  static constexpr int m_tiles = present ? m_tiles_ : 0;
  float scale[present ? m_tiles_ : 1][2] = {};
  float at(int mt, int half) const { return present ? scale[mt][half] : 1.0f; }
};

// Descales of K or V for the warp's keys of one n_block. keys_per_descale keys share one descale (0: no descales).
// Unless keys_per_descale is 1, block_n divides it, so that the keys of an n_block share one descale. Keys past the end
// use the last descale. They are masked anyway. paged: the descales of single keys are in pages.
template <int keys_per_descale, bool paged>
struct KvDescales {
  const AttentionParams& p;
  const ScaleRef& ref;
  const CtaTile& cta;
  const int key0;                // first key
  const float* first = nullptr;  // its descale, if not paged
  index_t stride = 0;
  int column = 0, last = 0;
  float block = 1.0f;

  KvDescales(const AttentionParams& params, const ScaleRef& scales, const CtaTile& tile, int seqlen, int first_key)
      : p(params), ref(scales), cta(tile), key0(first_key) {
    if constexpr (keys_per_descale > 1) {
      const int key = key0 < seqlen ? key0 : seqlen - 1;
      block = ref.data[cta.batch * ref.batch + cta.head_k * ref.head + key / keys_per_descale * ref.position];
    } else if constexpr (keys_per_descale == 1) {
      stride = ref.position, last = seqlen - 1 - key0;
      column = static_cast<int>(volatile_copy(static_cast<unsigned>(cta.lane))) % 4 * 2;
      if constexpr (!paged) first = ref.at(cta.batch, cta.head_k, cta.first_k, key0);
    }
  }
  // Returns the descale of key n of the lane, where n is 8 * n-tile, plus 0 or 1.
  float at(int n) const {
    if constexpr (keys_per_descale != 1) return block;
    const int key = column + n < last ? column + n : last;
    if constexpr (paged) return *paged_descale(p.pages, ref, cta.batch, cta.head_k, key0 + key);
    return first[key * stride];
  }

  // Multiplies scores by the descales of their keys.
  template <int m_tiles, int n_tiles>
  void scale_scores(float (&s)[m_tiles][n_tiles][4]) const {
#pragma unroll
    for (int n = 0; n < n_tiles; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float descale = at(n * 8 + i);
#pragma unroll
        for (int mt = 0; mt < m_tiles; ++mt) s[mt][n][i] *= descale, s[mt][n][2 + i] *= descale;
      }
  }
};

// The factor by which a block's PV is multiplied before it is added to the output. If descales of V are per block, the
// factor is this descale. If they are per key, they are multiplied into P. Then each row of P is scaled so that its
// largest value is 256, which f16 and E4M3 represent exactly. So even E4M3 is exact if one key has all the weight. The
// factor undoes this scaling after PV.
template <int keys_per_descale, int m_tiles>
struct PvScales {
  static constexpr int rows = keys_per_descale == 1 ? m_tiles : 1;
  float factor[rows][2];

  PvScales() {
#pragma unroll
    for (int mt = 0; mt < rows; ++mt) factor[mt][0] = factor[mt][1] = 1.0f;
  }

  float accumulate(float sum, float products, int mt, int half) const {
    if constexpr (keys_per_descale == 0) return sum + products;
    return fmaf(products, factor[keys_per_descale == 1 ? mt : 0][keys_per_descale == 1 ? half : 0], sum);
  }

  template <int n_tiles, class Descales>
  void scale_p(float (&s)[m_tiles][n_tiles][4], const Descales& keys) {
    if constexpr (keys_per_descale > 1) factor[0][0] = keys.block;
    if constexpr (keys_per_descale == 1) {
      float row_top[m_tiles][2] = {};
#pragma unroll
      for (int n = 0; n < n_tiles; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float descale = keys.at(n * 8 + i);
#pragma unroll
          for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              float& x = s[mt][n][2 * half + i];
              x *= descale, row_top[mt][half] = fmaxf(row_top[mt][half], x);
            }
        }
#pragma unroll
      for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float largest = fmaxf(quad_max(row_top[mt][half]), detail::float_of(0x0d800000u));  // 2^-100
          const float scale_up = __fdividef(256.0f, largest);
          factor[mt][half] = largest * 0x1p-8f;
#pragma unroll
          for (int n = 0; n < n_tiles; ++n) s[mt][n][2 * half] *= scale_up, s[mt][n][2 * half + 1] *= scale_up;
        }
    }
  }
};

}  // namespace rapt
