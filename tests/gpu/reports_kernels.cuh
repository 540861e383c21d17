// Helper kernels of the reports' tests: work before a call, kernels that write its inputs and copy its outputs on the
// same stream, and NaN left in shared memory. Called by reports_test.cpp. All threads of a launch loop over the arrays.
#pragma once

#include "prim_args.cuh"

namespace rapt::test {

template <class Body>
__device__ void each_index_of(long count, const Body& body) {
  const long threads = static_cast<long>(gridDim.x) * static_cast<long>(blockDim.x);
  for (long i = static_cast<long>(blockIdx.x) * static_cast<long>(blockDim.x) + static_cast<long>(threadIdx.x);
       i < count; i += threads)
    body(i);
}

// Runs for n nanoseconds.
__device__ inline void spin(const PrimArgs& args) {
  unsigned long long begin = 0, now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < static_cast<unsigned long long>(args.n));
}

// out: n elements of 16 bits.
template <unsigned short value>
__device__ void fill(const PrimArgs& args) {
  each_index_of(args.n, [&](long i) { static_cast<unsigned short*>(args.out)[i] = value; });
}

// a, out: n elements of 16 bits.
__device__ inline void copy(const PrimArgs& args) {
  each_index_of(args.n, [&](long i) {
    static_cast<unsigned short*>(args.out)[i] = static_cast<const unsigned short*>(args.a)[i];
  });
}

// out: one counter. Adds the number of differences between a and b, which have n 16-bit elements.
__device__ inline void count_differences(const PrimArgs& args) {
  each_index_of(args.n, [&](long i) {
    if (static_cast<const unsigned short*>(args.a)[i] != static_cast<const unsigned short*>(args.b)[i])
      atomicAdd(static_cast<unsigned*>(args.out), 1u);
  });
}

// Fills n words of shared memory with NaN, which stay there after the kernel.
__device__ inline void leave_nan(const PrimArgs& args) {
  extern __shared__ unsigned shared_words[];
  volatile unsigned* words = shared_words;
  for (unsigned i = threadIdx.x; i < static_cast<unsigned>(args.n); i += blockDim.x) words[i] = 0xffffffffu;
}

}  // namespace rapt::test
