// Descales of FP8 tensors that differ from row to row or key to key, on mma accumulator fragments. Those of a whole
// tensor or head are no matter of elements: they join the softmax scale and the end of a row. Device only.
#pragma once

#include "block_rows.cuh"
#include "device/softmax.cuh"
#include "ptx/copy.cuh"

namespace rapt {

// Q's descales of a lane's rows.
template <bool present, int m_tiles_>
struct RowScalesOf {
  static constexpr int m_tiles = present ? m_tiles_ : 0;
  float factor[present ? m_tiles_ : 1][2] = {};
  float of(int mt, int half) const { return present ? factor[mt][half] : 1.0f; }
};

// K's or V's descales of the keys of a warp's step: keys_each keys share one (0: there are none here). A step's keys
// lie in one block. Past the sequence the last key's is taken: nobody sees what it multiplies.
template <int keys_each>
struct KeyScales {
  const float* first = nullptr;  // of the step's first key
  index_t stride = 0;
  int column = 0, last = 0;
  float block = 1.0f;

  KeyScales(const ScaleRef& ref, const BlockRows& at, int seqlen, int key0) {
    if constexpr (keys_each > 1) {
      const int key = key0 < seqlen ? key0 : seqlen - 1;
      block = ref.data[at.batch * ref.batch + at.head_k * ref.head + key / keys_each * ref.position];
    } else if constexpr (keys_each == 1) {
      stride = ref.position, last = seqlen - 1 - key0;
      column = static_cast<int>(volatile_copy(static_cast<unsigned>(at.lane))) % 4 * 2;
      first = ref.at(at.batch, at.head_k, at.first_k, key0);
    }
  }
  // Of key `n` of the lane's own: 8 * n-tile + 0 or 1.
  float of(int n) const {
    if constexpr (keys_each != 1) return block;
    const int key = column + n;
    return first[(key < last ? key : last) * stride];
  }
};

// What products of weights with V are multiplied by before they join a row's output. The descale of a block is that
// factor; those of single keys join the weights, which are then raised so that a row's largest is 256: neither f16 nor
// E4M3 loses them, and E4M3 has no error where one key takes all. The factor lowers them again.
template <int keys_each, int m_tiles>
struct ValueFactors {
  static constexpr int rows = keys_each == 1 ? m_tiles : 1;
  float factor[rows][2];

  ValueFactors() {
#pragma unroll
    for (int mt = 0; mt < rows; ++mt) factor[mt][0] = factor[mt][1] = 1.0f;
  }

  float join(float sum, float products, int mt, int half) const {
    if constexpr (keys_each == 0) return sum + products;
    return fmaf(products, factor[keys_each == 1 ? mt : 0][keys_each == 1 ? half : 0], sum);
  }

  template <int n_tiles>
  void weigh(float (&s)[m_tiles][n_tiles][4], const KeyScales<keys_each>& keys) {
    if constexpr (keys_each > 1) factor[0][0] = keys.block;
    if constexpr (keys_each == 1) {
      float top[m_tiles][2] = {};
#pragma unroll
      for (int n = 0; n < n_tiles; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float key = keys.of(n * 8 + i);
#pragma unroll
          for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              float& x = s[mt][n][2 * half + i];
              x *= key, top[mt][half] = fmaxf(top[mt][half], x);
            }
        }
#pragma unroll
      for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float largest = fmaxf(quad_max(top[mt][half]), detail::float_of(0x0d800000u));  // 2^-100
          const float raise = __fdividef(256.0f, largest);
          factor[mt][half] = largest * 0x1p-8f;
#pragma unroll
          for (int n = 0; n < n_tiles; ++n) s[mt][n][2 * half] *= raise, s[mt][n][2 * half + 1] *= raise;
        }
    }
  }
};

}  // namespace rapt
