// Code of the second and third pass over the keys, which follow if an output is not finite (NanPass, epilogue.cuh).
// Device only.
#pragma once

#include "device/tile.cuh"
#include "epilogue.cuh"

namespace rapt {

// Rewrites the V tile of an n_block in shared memory. zero_non_finite: non-finite elements become 0. count_non_finite:
// non-finite elements become 1, all others 0.
template <const Sm80Config& cfg, class VTile>
inline void rewrite_v_for_pass(NanPass pass, unsigned tile, int thread) {
  constexpr int width = 8 * bytes_of(cfg.v);
  constexpr unsigned all = 0xffffffffu >> (32 - width);
  constexpr unsigned one = cfg.v == DType::f32    ? 0x3f800000u
                           : cfg.v == DType::f16  ? 0x3c00u
                           : cfg.v == DType::bf16 ? 0x3f80u
                           : cfg.v == DType::e5m2 ? 0x3cu
                                                  : 0x38u;
  for (int byte = thread * 4; byte < VTile::bytes; byte += cfg.threads() * 4) {
    const unsigned word = load_shared(tile + static_cast<unsigned>(byte));
    unsigned rewritten = 0;
    for (int shift = 0; shift < 32; shift += width) {
      const unsigned element = word >> shift & all;
      const bool finite = is_finite_code<cfg.v>(element);
      rewritten |= (pass == zero_non_finite ? (finite ? element : 0u) : (finite ? 0u : one)) << shift;
    }
    store_shared(tile + static_cast<unsigned>(byte), rewritten);
  }
  __syncthreads();
}

// Sets the weights for the pass count_non_finite: 1 if the row sees the key, else 0. A key with a NaN score counts as
// visible.
template <int m_tiles, int n_tiles>
inline void mark_visible(float (&s)[m_tiles][n_tiles][4]) {
#pragma unroll
  for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
    for (int n = 0; n < n_tiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[mt][n][i] = s[mt][n][i] == minus_infinity ? 0.0f : 1.0f;
}

}  // namespace rapt
