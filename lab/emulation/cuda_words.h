// The CUDA keywords, types and functions that kernels and their variants use, for sources that a host compiler
// compiles. Included before the kernel's .cuh.
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>

#include "cuda_emulation.h"
#include "launch.h"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))

using std::fabs;
using std::max;
using std::min;

struct float2 {
  float x, y;
};
struct float4 {
  float x, y, z, w;
};
struct uint2 {
  unsigned x, y;
};
struct uint4 {
  unsigned x, y, z, w;
};

inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
template <class T>
inline T __ldg(const T* p) {
  return *p;
}

inline unsigned __shfl_sync(unsigned, unsigned x, int lane) {
  return rapt::cuda_emulation::block().exchange(x)[static_cast<unsigned>(lane) % 32];
}
inline float __shfl_sync(unsigned lanes, float x, int lane) {
  return __builtin_bit_cast(float, __shfl_sync(lanes, __builtin_bit_cast(unsigned, x), lane));
}
inline int __shfl_sync(unsigned lanes, int x, int lane) {
  return static_cast<int>(__shfl_sync(lanes, static_cast<unsigned>(x), lane));
}
inline float __shfl_down_sync(unsigned lanes, float x, unsigned by) {
  const unsigned lane = threadIdx.x % 32;
  return __shfl_sync(lanes, x, static_cast<int>(lane + by < 32 ? lane + by : lane));
}

inline void __threadfence() {}
inline unsigned atomicAdd(unsigned* to, unsigned x) { return std::exchange(*to, *to + x); }
inline unsigned atomicInc(unsigned* to, unsigned most) { return std::exchange(*to, *to >= most ? 0 : *to + 1); }
