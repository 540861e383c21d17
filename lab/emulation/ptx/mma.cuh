// Stand-ins of ptx/mma.cuh for emulated kernels (cuda_emulation.h). They follow the fragment layouts of the PTX ISA.
// The include path finds this file before the real one.
#pragma once

#include <array>
#include <cstring>

#include "ptx/copy.cuh"
#include "shared/dtype.h"

namespace rapt {

inline unsigned short shared_half(unsigned address) {
  unsigned short x;
  std::memcpy(&x, emulated_shared + address, 2);
  return x;
}

inline void ldmatrix_x4(unsigned (&r)[4], unsigned address) {
  const auto rows = cuda_emulation::block().exchange(address);
  const unsigned lane = threadIdx.x % 32;
  for (unsigned i = 0; i < 4; ++i) std::memcpy(&r[i], emulated_shared + rows[8 * i + lane / 4] + lane % 4 * 4, 4);
}
inline void ldmatrix_x4_trans(unsigned (&r)[4], unsigned address) {
  const auto rows = cuda_emulation::block().exchange(address);
  const unsigned lane = threadIdx.x % 32;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned row = 8 * i + lane % 4 * 2, column = lane / 4 * 2;
    r[i] = shared_half(rows[row] + column) | unsigned{shared_half(rows[row + 1] + column)} << 16;
  }
}
inline void stmatrix_x4(unsigned address, unsigned r0, unsigned r1, unsigned r2, unsigned r3) {
  const auto rows = cuda_emulation::block().exchange(address);
  const unsigned lane = threadIdx.x % 32, r[4] = {r0, r1, r2, r3};
  for (unsigned i = 0; i < 4; ++i) std::memcpy(emulated_shared + rows[8 * i + lane / 4] + lane % 4 * 4, &r[i], 4);
}

// This lane holds four elements of C. Returns the sum of 16 products for each of them.
template <DType dtype>
inline std::array<float, 4> emulated_products(const unsigned (&a)[4], unsigned b0, unsigned b1) {
  static_assert(is_16bit(dtype));
  std::array<std::array<unsigned, 32>, 6> words;
  const unsigned mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
  for (size_t i = 0; i < 6; ++i) words[i] = cuda_emulation::block().exchange(mine[i]);
  const auto half = [](unsigned word, unsigned which) {
    const auto code = static_cast<unsigned short>(word >> (which * 16));
    return dtype == DType::f16 ? f16_to_float(code) : bf16_to_float(code);
  };
  const unsigned lane = threadIdx.x % 32;
  std::array<float, 4> sums{};
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    for (unsigned k = 0; k < 16; ++k) {
      const unsigned source_a = row % 8 * 4 + k % 8 / 2, source_b = column * 4 + k % 8 / 2;
      sums[i] += half(words[row / 8 + k / 8 * 2][source_a], k % 2) * half(words[4 + k / 8][source_b], k % 2);
    }
  }
  return sums;
}

template <DType dtype>
inline void mma_m16n8k16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  const std::array<float, 4> sums = emulated_products<dtype>(a, b0, b1);
  for (size_t i = 0; i < 4; ++i) d[i] += sums[i];
}
// Adds 32 products of FP8 codes for each of the lane's four elements of C.
template <DType a_type, DType b_type>
inline void mma_m16n8k32(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  std::array<std::array<unsigned, 32>, 6> words;
  const unsigned mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
  for (size_t i = 0; i < 6; ++i) words[i] = cuda_emulation::block().exchange(mine[i]);
  const auto byte = [](unsigned word, unsigned which) { return static_cast<unsigned char>(word >> (which * 8)); };
  const auto value = [](DType t, unsigned char code) {
    return t == DType::e4m3 ? e4m3_to_float(code) : e5m2_to_float(code);
  };
  const unsigned lane = threadIdx.x % 32;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    float sum = 0.0f;
    for (unsigned k = 0; k < 32; ++k) {
      const unsigned source_a = row % 8 * 4 + k % 16 / 4, source_b = column * 4 + k % 16 / 4;
      sum += value(a_type, byte(words[row / 8 + k / 16 * 2][source_a], k % 4)) *
             value(b_type, byte(words[4 + k / 16][source_b], k % 4));
    }
    d[i] += sum;
  }
}
// Ignores the last 13 bits of a and b, and truncates each sum to f32, because tensor cores do not round to nearest.
inline void mma_m16n8k8_tf32(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  std::array<std::array<unsigned, 32>, 6> words;
  const unsigned mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
  for (size_t i = 0; i < 6; ++i) words[i] = cuda_emulation::block().exchange(mine[i]);
  const auto value = [](unsigned bits) { return double{detail::float_of(bits & 0xffffe000u)}; };
  const unsigned lane = threadIdx.x % 32;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    double sum = d[i];
    for (unsigned k = 0; k < 8; ++k)
      sum += value(words[row / 8 + k / 4 * 2][row % 8 * 4 + k % 4]) * value(words[4 + k / 4][column * 4 + k % 4]);
    d[i] = detail::truncated_to_float(sum);
  }
}
inline void mma_m16n8k16_f16(unsigned (&d)[2], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  const std::array<float, 4> sums = emulated_products<DType::f16>(a, b0, b1);
  for (size_t i = 0; i < 4; ++i) {
    unsigned short code = static_cast<unsigned short>(d[i / 2] >> (i % 2 * 16));
    code = float_to_f16(f16_to_float(code) + sums[i]);
    d[i / 2] = (d[i / 2] & (i % 2 == 0 ? 0xffff0000u : 0xffffu)) | unsigned{code} << (i % 2 * 16);
  }
}

}  // namespace rapt
