// Wide layout with bf16 products: a 32-bit element holds two bf16 values, and vdpbf16ps adds both products to an f32
// sum (Intel SDM, VDPBF16PS: subnormals count as zero). Arrays: q[d/2][block_m]; K in place; P and V in pairs of keys.
// P is rounded to bf16; the row sum uses the unrounded values. Included only by isa_avx512_bf16.cpp (internal linkage).
#pragma once

#include <immintrin.h>

#include "cpu/attention_tile.h"

namespace rapt::cpu {
namespace {

struct Bf16Dot {
  static Vec step(Vec a, Vec b, Vec sum) {
    return Vec{_mm512_dpbf16_ps(sum.raw, __builtin_bit_cast(__m512bh, a.raw), __builtin_bit_cast(__m512bh, b.raw))};
  }
};

inline float pair_of(uint16_t low, uint16_t high) {
  return detail::float_of(static_cast<uint32_t>(low) | static_cast<uint32_t>(high) << 16);
}

inline const uint16_t* bf16_row(const TensorRef& t, int64_t b, int64_t h, int64_t s) {
  return static_cast<const uint16_t*>(t.data) + t.index(b, h, s);
}

template <int block_m>
struct WideBf16 : Wide<block_m> {
  static int64_t pairs(int64_t n) { return (n + 1) / 2; }

  static void load_queries(const AttentionParams& call, const Tile& tile, const Rows& rows, const Scratch& s) {
    for (int r = 0; r < block_m; ++r) {
      const bool live = r < rows.count;
      const uint16_t* q = bf16_row(call.q, tile.batch, rows.head[r], tile.first_q + rows.query[r]);
      for (int64_t d = 0; d < call.head_dim; d += 2) {
        const uint16_t low = q[d * call.q.column],
                       high = d + 1 < call.head_dim ? q[(d + 1) * call.q.column] : uint16_t{0};
        s.q[d / 2 * block_m + r] = live ? pair_of(low, high) : 0.0f;
      }
    }
  }

  // K is read in place if its pairs of channels are 4-byte aligned. Otherwise it is copied. An odd last channel is
  // paired with zero.
  static Operand keys(const AttentionParams& call, const Tile& tile, const KeyTile& keys, const Scratch& s) {
    const KeyRows rows(call, tile, call.k);
    const auto* const base = reinterpret_cast<const uint16_t*>(rows.base());
    const uint16_t* first = base + rows.offset(keys.first);
    const bool in_place = rows.are_even(keys) && call.k.column == 1 && call.k.row % 2 == 0 && call.head_dim % 2 == 0 &&
                          reinterpret_cast<uintptr_t>(first) % 4 == 0;
    if (in_place) return {reinterpret_cast<const float*>(first), call.k.row / 2};
    const int64_t stride = pairs(call.head_dim);
    for (int n = 0; n < keys.count; ++n) {
      const uint16_t* k = base + rows.offset(keys.first + n);
      for (int64_t d = 0; d < call.head_dim; d += 2)
        s.k[n * stride + d / 2] =
            pair_of(k[d * call.k.column], d + 1 < call.head_dim ? k[(d + 1) * call.k.column] : uint16_t{0});
    }
    return {s.k, stride};
  }

  static void scores(const AttentionParams& call, const Operand& k, int count, const Rows& rows, const Scratch& s) {
    Wide<block_m>::template scores_by<Bf16Dot>(call, k, pairs(call.head_dim), count, rows, s);
  }

  // v[n/2][c] holds V[n][c] and V[n + 1][c]. An odd last key is paired with zero.
  static Operand values(const AttentionParams& call, const Tile& tile, const KeyTile& keys, bool nan_safe,
                        bool& nonfinite, const Scratch& s) {
    const int64_t stride = Scratch::align(call.head_dim_v), column = call.v.column;
    const KeyRows rows(call, tile, call.v);
    const auto* const base = reinterpret_cast<const uint16_t*>(rows.base());
    auto keep = [&](uint16_t code) {
      if ((code & 0x7f80u) != 0x7f80u) return code;
      nonfinite = true;
      return uint16_t{0};
    };
    for (int n = 0; n < keys.count; n += 2) {
      const uint16_t* const low = base + rows.offset(keys.first + n);
      const uint16_t* const high = n + 1 < keys.count ? base + rows.offset(keys.first + n + 1) : low;
      const uint32_t high_bits = n + 1 < keys.count ? 0xffffu : 0u;
      float* dst = s.v + n / 2 * stride;
      if (nan_safe) {
        for (int64_t c = 0; c < call.head_dim_v; ++c)
          dst[c] = pair_of(keep(low[c * column]), keep(static_cast<uint16_t>(high[c * column] & high_bits)));
      } else {
        for (int64_t c = 0; c < call.head_dim_v; ++c)
          dst[c] = pair_of(low[c * column], static_cast<uint16_t>(high[c * column] & high_bits));
      }
    }
    return {s.v, stride};
  }

  static void accumulate(const AttentionParams& call, const Operand& v, int count, const Rows& rows, const Scratch& s) {
    for (int n = 0; n < count; n += 2) {
      for (int r = 0; r < block_m; r += lanes) {
        const float* p = s.scores + n * block_m + r;
        const __m512i low = rounded(load(p)),
                      high = n + 1 < count ? rounded(load(p + block_m)) : _mm512_setzero_si512();
        _mm512_storeu_si512(s.pairs + n / 2 * block_m + r,
                            _mm512_or_si512(low, _mm512_maskz_slli_epi32(0xffff, high, 16)));
      }
    }
    Wide<block_m>::template accumulate_by<Bf16Dot>(call, v, s.pairs, pairs(count), rows, s);
  }

 private:
  // These functions use masked intrinsics with all lanes enabled: for the unmasked ones, GCC 12 warns about an
  // undefined operand in its own headers.
  static __m512i rounded(Vec x) {
    return _mm512_maskz_cvtepu16_epi32(0xffff, __builtin_bit_cast(__m256i, _mm512_cvtneps_pbh(x.raw)));
  }
};

inline void attend_bf16(const Call& call, const Tile& tile, int block_m, void* scratch) {
  switch (block_m) {
    case 64: attend<WideBf16<64>>(call, tile, block_m, scratch); break;
    case 32: attend<WideBf16<32>>(call, tile, block_m, scratch); break;
    default: attend<WideBf16<16>>(call, tile, block_m, scratch); break;
  }
}

}  // namespace
}  // namespace rapt::cpu
