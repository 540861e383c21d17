// Stand-ins of ptx/wgmma.cuh for emulated kernels (cuda_emulation.h). They follow the layouts of the PTX ISA, section
// 9.7.15. An instruction is complete immediately. The include path finds this file before the real one.
#pragma once

#include "ptx/tma.cuh"
#include "shared/dtype.h"
#include "shared/matrix_descriptor.h"

namespace rapt {

inline void wgmma_fence() {}
inline void wgmma_commit_group() {}
template <int pending>
inline void wgmma_wait_group() {}
template <int tiles>
inline void pin(float (&)[1][tiles][4]) {}
inline unsigned warp_uniform(unsigned x) { return x; }

// Returns an element. emulated_row_major: element (row, k) of a matrix in which k, the index of the sum, runs along a
// row. emulated_column_major: element (k, column) of a matrix in which each k has its own row.
template <DType type>
inline float emulated_element(unsigned address) {
  unsigned short code;
  std::memcpy(&code, emulated_shared + swizzled(address, 128), 2);
  return type == DType::f16 ? f16_to_float(code) : bf16_to_float(code);
}
template <DType type>
inline float emulated_row_major(unsigned long long word, unsigned row, unsigned k) {
  const auto start = static_cast<unsigned>(word & 0x3fff) << 4, group = static_cast<unsigned>(word >> 32 & 0x3fff) << 4;
  return emulated_element<type>(start + row / 8 * group + row % 8 * 128 + k * 2);
}
template <DType type>
inline float emulated_column_major(unsigned long long word, unsigned k, unsigned column) {
  const auto start = static_cast<unsigned>(word & 0x3fff) << 4, panel = static_cast<unsigned>(word >> 16 & 0x3fff) << 4,
             group = static_cast<unsigned>(word >> 32 & 0x3fff) << 4;
  return emulated_element<type>(start + column / 64 * panel + k / 8 * group + k % 8 * 128 + column % 64 * 2);
}

template <int n>
struct Wgmma {
  template <DType type>
  static void ss(float (&d)[1][n / 8][4], unsigned long long a, unsigned long long b, bool add) {
    float rows[2][16];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    for (unsigned half = 0; half < 2; ++half)
      for (unsigned k = 0; k < 16; ++k) rows[half][k] = emulated_row_major<type>(a, 16 * warp + lane / 4 + 8 * half, k);
    for (unsigned tile = 0; tile < n / 8; ++tile)
      for (unsigned i = 0; i < 2; ++i) {
        float column[16];
        for (unsigned k = 0; k < 16; ++k) column[k] = emulated_row_major<type>(b, 8 * tile + 2 * (lane % 4) + i, k);
        sum(d, tile, i, rows, column, add);
      }
  }
  template <DType type>
  static void rs(float (&d)[1][n / 8][4], const unsigned (&a)[4], unsigned long long b, bool add) {
    float rows[2][16];
    const unsigned lane = threadIdx.x % 32;
    for (unsigned r = 0; r < 4; ++r) {
      const auto& words = cuda_emulation::block().exchange(a[r]);
      for (unsigned k = 0; k < 8; ++k) {
        const auto code = static_cast<unsigned short>(words[lane / 4 * 4 + k / 2] >> (k % 2 * 16));
        rows[r % 2][r / 2 * 8 + k] = type == DType::f16 ? f16_to_float(code) : bf16_to_float(code);
      }
    }
    for (unsigned tile = 0; tile < n / 8; ++tile)
      for (unsigned i = 0; i < 2; ++i) {
        float column[16];
        for (unsigned k = 0; k < 16; ++k) column[k] = emulated_column_major<type>(b, k, 8 * tile + 2 * (lane % 4) + i);
        sum(d, tile, i, rows, column, add);
      }
  }

 private:
  static void sum(float (&d)[1][n / 8][4], unsigned tile, unsigned i, const float (&rows)[2][16],
                  const float (&column)[16], bool add) {
    for (unsigned half = 0; half < 2; ++half) {
      float& to = d[0][tile][2 * half + i];
      float total = add ? to : 0.0f;
      for (unsigned k = 0; k < 16; ++k) total += rows[half][k] * column[k];
      to = total;
    }
  }
};

}  // namespace rapt
