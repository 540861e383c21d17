// The loops that measure a GPU's peak: tensor-core products from registers, fused multiply-adds, and reads of a large
// buffer. Compiled at run time by roof_gpu.cpp, one loop per unit. Every thread stores its result, so the compiler
// cannot remove work.
#pragma once

namespace rapt::roof {

struct Params {
  const uint4* from = nullptr;
  unsigned* to = nullptr;   // one element per thread
  unsigned long count = 0;  // uint4 elements to read, all threads together, a multiple of 8 per thread
  int rounds = 0;           // of the arithmetic loops
};

// mma.sync of one warp: a 16x8 tile in float, 16 products deep (PTX ISA, "mma.m16n8k16").
__device__ inline void mma_f16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Two halves between 0.5 and 1 with signs. The bits differ between lanes, because constant bits use less power.
__device__ inline unsigned some_halves(unsigned index) {
  unsigned x = index * 2654435761u + 0x9e3779b9u;
  x ^= x >> 15;
  x *= 2246822519u;
  return (x & 0x83ff83ffu) | 0x38003800u;
}

inline constexpr int products = 8;  // independent accumulator tiles of a warp

__device__ inline void multiply_f16(const Params& p) {
  const unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned a[4], b[products][2];
  float sum[products][4] = {};
  for (int i = 0; i < 4; ++i) a[i] = some_halves(thread * 32 + i);
  for (int t = 0; t < products; ++t)
    for (int i = 0; i < 2; ++i) b[t][i] = some_halves(thread * 32 + 4 + 2 * t + i);
#pragma unroll 1
  for (int round = 0; round < p.rounds; ++round)
#pragma unroll
    for (int t = 0; t < products; ++t) mma_f16(sum[t], a, b[t]);
  float total = 0;
  for (int t = 0; t < products; ++t)
    for (int i = 0; i < 4; ++i) total += sum[t][i];
  p.to[thread] = __float_as_uint(total);
}

inline constexpr int chains = 16;  // independent sums of a thread

__device__ inline void multiply_f32(const Params& p) {
  const unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
  float sum[chains];
  const float factor = 0.5f + static_cast<float>(thread & 1023u) * 0x1p-12f;
  for (int c = 0; c < chains; ++c) sum[c] = static_cast<float>(c);
#pragma unroll 1
  for (int round = 0; round < p.rounds; ++round)
#pragma unroll
    for (int c = 0; c < chains; ++c) sum[c] = fmaf(sum[c], factor, 1.0f);
  float total = 0;
  for (int c = 0; c < chains; ++c) total += sum[c];
  p.to[thread] = __float_as_uint(total);
}

inline constexpr int loads = 8;  // 16-byte loads of a thread in flight

__device__ inline void read(const Params& p) {
  const unsigned long thread = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
  unsigned mix = 0;
#pragma unroll 1
  for (unsigned long at = thread; at < p.count; at += loads * threads) {
    uint4 x[loads];
#pragma unroll
    for (int i = 0; i < loads; ++i) x[i] = __ldcs(p.from + at + i * threads);
#pragma unroll
    for (int i = 0; i < loads; ++i) mix += x[i].x ^ x[i].y ^ x[i].z ^ x[i].w;
  }
  p.to[thread] = mix;
}

}  // namespace rapt::roof
