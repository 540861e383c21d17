// Kernels that test the instructions of sm_90a: wgmma, TMA, mbarriers, barriers of some threads, setmaxnreg. Each
// kernel runs as one block. Operands are passed as images of shared memory or registers, and results are the registers
// of each thread. prim_hopper_model.h defines these layouts. Called by prim_hopper_test.cpp, and by
// tests/cpu/prim_hopper_emulation_test.cpp with the stand-ins of the instructions.
#pragma once

#include "prim_hopper_args.cuh"
#include "ptx/copy.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"

namespace rapt::test {

inline void copy_words(void* to, const void* from, int bytes) {
  for (int i = static_cast<int>(threadIdx.x); i < bytes / 4; i += static_cast<int>(blockDim.x))
    static_cast<unsigned*>(to)[i] = static_cast<const unsigned*>(from)[i];
}

// out: [thread][register], which already holds the addend.
template <int n>
struct Accumulators {
  float d[1][n / 8][4];
  float* at;

  explicit Accumulators(const HopperArgs& args) : at(static_cast<float*>(args.out) + threadIdx.x * (n / 2)) {
#pragma unroll
    for (int i = 0; i < n / 2; ++i) d[0][i / 4][i % 4] = at[i];
  }
  void store() const {
#pragma unroll
    for (int i = 0; i < n / 2; ++i) at[i] = d[0][i / 4][i % 4];
  }
};

// Both operands K-major, in shared memory. a: images of A (64 x dim) and B (n x dim).
template <int n, int dim, DType dtype>
inline void multiply_shared(const HopperArgs& args) {
  constexpr int a_bytes = dim / 64 * 64 * 128, b_bytes = dim / 64 * n * 128;
  extern __shared__ __align__(1024) char memory[];
  copy_words(memory, args.a, a_bytes + b_bytes);
  fence_async_proxy();
  __syncthreads();
  const unsigned start = warp_uniform(shared_address(memory));
  const MatrixDescriptor a = MatrixDescriptor::of(start, 1024), b = MatrixDescriptor::of(start + a_bytes, 1024);
  Accumulators<n> sums(args);
  pin(sums.d);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < dim; k += 16)
    Wgmma<n>::template ss<dtype, dtype>(sums.d, a.advanced(k / 64 * 64 * 128 + k % 64 * 2).word(),
                                        b.advanced(k / 64 * n * 128 + k % 64 * 2).word(), true);
  wgmma_commit_group();
  wgmma_wait_group<0>();
  pin(sums.d);
  sums.store();
}

// A in registers; B MN-major in shared memory. a: [16 keys][thread][4] registers; b: the image of B (keys x n).
template <int n, int keys, DType dtype>
inline void multiply_registers(const HopperArgs& args) {
  extern __shared__ __align__(1024) char memory[];
  copy_words(memory, args.b, (n + 63) / 64 * keys * 128);
  fence_async_proxy();
  __syncthreads();
  const MatrixDescriptor b = MatrixDescriptor::of(warp_uniform(shared_address(memory)), 1024, keys * 128);
  unsigned a[keys / 16][4];
#pragma unroll
  for (int i = 0; i < keys / 16 * 4; ++i)
    a[i / 4][i % 4] = static_cast<const unsigned*>(args.a)[(i / 4 * 128 + threadIdx.x) * 4 + i % 4];
  Accumulators<n> sums(args);
  pin(sums.d);
  wgmma_fence();
#pragma unroll
  for (int key = 0; key < keys; key += 16)  // the first product overwrites the registers, whatever they hold
    Wgmma<n>::template rs<dtype, dtype>(sums.d, a[key / 16], b.advanced(key * 128).word(), key > 0);
  wgmma_commit_group();
  wgmma_wait_group<0>();
  pin(sums.d);
  sums.store();
}

// out: the bytes of a box of 64 columns of 16 bits, as they lie in shared memory.
template <int rows>
inline void load_box(const HopperArgs& args) {
  extern __shared__ __align__(1024) char memory[];
  const unsigned box = shared_address(memory), barrier = box + rows * 128;
  for (int i = static_cast<int>(threadIdx.x); i < rows * 128; i += static_cast<int>(blockDim.x)) memory[i] = -1;
  if (threadIdx.x == 0) {
    init_barrier(barrier, 1);
    fence_barrier_init();
  }
  fence_async_proxy();
  __syncthreads();
  if (threadIdx.x == 0) {
    arrive_expecting(barrier, rows * 128);
    copy_box(box, reinterpret_cast<const TensorMap&>(args.map), barrier, args.x, args.row, args.head, args.batch);
  }
  wait_barrier(barrier, 0);
  copy_words(args.out, memory, rows * 128);
}

// Two warpgroups and two mbarriers. In each round each thread of the first warpgroup writes a number, and each thread
// of the second warpgroup adds the number of another thread to its sum. out: the sums of the second warpgroup.
inline void hand_over(const HopperArgs& args) {
  constexpr int rounds = 9;
  extern __shared__ __align__(1024) char memory[];
  volatile unsigned* const slots = reinterpret_cast<unsigned*>(memory);
  const unsigned full = shared_address(memory) + 512, empty = full + 8, thread = threadIdx.x % 128;
  if (threadIdx.x == 0) {
    init_barrier(full, 128);
    init_barrier(empty, 128);
    fence_barrier_init();
  }
  __syncthreads();
  unsigned sum = 0;
  for (unsigned round = 0; round < rounds; ++round) {
    if (threadIdx.x < 128) {
      if (round > 0) wait_barrier(empty, (round - 1) % 2);
      slots[thread] = round * 1000 + thread;
      arrive(full);
    } else {
      wait_barrier(full, round % 2);
      sum += slots[127 - thread];
      arrive(empty);
    }
  }
  if (threadIdx.x >= 128) static_cast<unsigned*>(args.out)[thread] = sum;
}

// The same with barriers of some threads: writers arrive at one barrier and wait at the other.
inline void hand_over_named(const HopperArgs& args) {
  constexpr unsigned rounds = 9, full = 1, empty = 2;
  extern __shared__ __align__(1024) char memory[];
  volatile unsigned* const slots = reinterpret_cast<unsigned*>(memory);
  const unsigned thread = threadIdx.x % 128;
  unsigned sum = 0;
  for (unsigned round = 0; round < rounds; ++round) {
    if (threadIdx.x < 128) {
      if (round > 0) wait_named(empty, 256);
      slots[thread] = round * 1000 + thread;
      arrive_named(full, 256);
    } else {
      wait_named(full, 256);
      sum += slots[127 - thread];
      if (round + 1 < rounds) arrive_named(empty, 256);
    }
  }
  if (threadIdx.x >= 128) static_cast<unsigned*>(args.out)[thread] = sum;
}

// Three warpgroups, each compiled for at most 168 registers. The first one gives registers away. The others take them
// and hold 200 numbers at once. a: [number][thread of 256]; out: the weighted sum of each thread.
inline void move_registers(const HopperArgs& args) {
  constexpr int tiles = 50;
  if (warp_uniform(threadIdx.x / 128) == 0) {
    give_registers<40>();
    return;
  }
  take_registers<232>();
  const unsigned thread = threadIdx.x - 128;
  float x[1][tiles][4];
#pragma unroll
  for (int i = 0; i < 4 * tiles; ++i) x[0][i / 4][i % 4] = static_cast<const float*>(args.a)[i * 256 + thread];
  pin(x);
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 4 * tiles; ++i) sum += x[0][i / 4][i % 4] * static_cast<float>(i % 7 + 1);
  static_cast<float*>(args.out)[thread] = sum;
}

}  // namespace rapt::test
