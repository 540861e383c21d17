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

constexpr bool can_multiply(DType a, DType b) {
  return is_tensor_core_fp8(a) ? is_tensor_core_fp8(b) : a == b && (a == DType::f16 || a == DType::bf16);
}

// Returns an element. emulated_row_major: element (row, k) of a matrix in which k, the index of the sum, runs along a
// row. emulated_column_major: element (k, column) of a matrix in which each k has its own row.
template <DType type>
inline float emulated_element(unsigned address) {
  return load_float(type, emulated_shared + swizzled(address, 128), 0);
}
template <DType type>
inline float emulated_row_major(unsigned long long word, unsigned row, unsigned k) {
  const auto start = static_cast<unsigned>(word & 0x3fff) << 4, group = static_cast<unsigned>(word >> 32 & 0x3fff) << 4;
  return emulated_element<type>(start + row / 8 * group + row % 8 * 128 + k * bytes_of(type));
}
template <DType type>
inline float emulated_column_major(unsigned long long word, unsigned k, unsigned column) {
  const auto start = static_cast<unsigned>(word & 0x3fff) << 4, panel = static_cast<unsigned>(word >> 16 & 0x3fff) << 4,
             group = static_cast<unsigned>(word >> 32 & 0x3fff) << 4;
  return emulated_element<type>(start + column / 64 * panel + k / 8 * group + k % 8 * 128 + column % 64 * 2);
}

template <int n>
struct Wgmma {
  template <DType a_type, DType b_type>
  static void ss(float (&d)[1][n / 8][4], unsigned long long a, unsigned long long b, bool add) {
    static_assert(can_multiply(a_type, b_type));
    constexpr unsigned depth = 32 / bytes_of(a_type);
    float rows[2][depth];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    for (unsigned half = 0; half < 2; ++half)
      for (unsigned k = 0; k < depth; ++k)
        rows[half][k] = emulated_row_major<a_type>(a, 16 * warp + lane / 4 + 8 * half, k);
    for (unsigned tile = 0; tile < n / 8; ++tile)
      for (unsigned i = 0; i < 2; ++i) {
        float column[depth];
        for (unsigned k = 0; k < depth; ++k)
          column[k] = emulated_row_major<b_type>(b, 8 * tile + 2 * (lane % 4) + i, k);
        sum(d, tile, i, rows, column, add);
      }
  }
  template <DType a_type, DType b_type>
  static void rs(float (&d)[1][n / 8][4], const unsigned (&a)[4], unsigned long long b, bool add) {
    static_assert(can_multiply(a_type, b_type));
    constexpr unsigned bytes = bytes_of(a_type), depth = 32 / bytes, in_word = 4 / bytes;
    float rows[2][depth];
    const unsigned lane = threadIdx.x % 32;
    for (unsigned r = 0; r < 4; ++r) {
      const auto& words = cuda_emulation::block().exchange(a[r]);
      for (unsigned k = 0; k < depth / 2; ++k)
        rows[r % 2][r / 2 * depth / 2 + k] = load_float(a_type, &words[lane / 4 * 4 + k / in_word], k % in_word);
    }
    for (unsigned tile = 0; tile < n / 8; ++tile)
      for (unsigned i = 0; i < 2; ++i) {
        float column[depth];
        const unsigned at = 8 * tile + 2 * (lane % 4) + i;
        for (unsigned k = 0; k < depth; ++k)
          column[k] = bytes == 1 ? emulated_row_major<b_type>(b, at, k) : emulated_column_major<b_type>(b, k, at);
        sum(d, tile, i, rows, column, add);
      }
  }

 private:
  template <unsigned depth>
  static void sum(float (&d)[1][n / 8][4], unsigned tile, unsigned i, const float (&rows)[2][depth],
                  const float (&column)[depth], bool add) {
    for (unsigned half = 0; half < 2; ++half) {
      float& to = d[0][tile][2 * half + i];
      float total = add ? to : 0.0f;
      for (unsigned k = 0; k < depth; ++k) total += rows[half][k] * column[k];
      to = total;
    }
  }
};

}  // namespace rapt
