// One kernel for each new launch and load feature of sm_90. Called by launch_facilities_test.cpp.
#pragma once

#include "launch_facilities_args.cuh"

namespace rapt::test {

__device__ inline unsigned shared_address_of(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// out[block * threads + t]: element t in the shared memory of the next block in the same cluster. Blocks of other
// clusters hold other numbers, so the test sees a read from the wrong block.
__device__ inline void read_neighbour(const FacilitiesArgs& args) {
  __shared__ unsigned own[256];
  const unsigned thread = threadIdx.x, threads = blockDim.x, block = blockIdx.x;
  own[thread] = 1000 * block + thread;
  unsigned rank, blocks;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
  // Waits until every block of the cluster runs and has written, because another block reads from it next.
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
  unsigned there, value;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(there)
               : "r"(shared_address_of(own + thread)), "r"((rank + 1) % blocks));
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(there) : "memory");
  static_cast<unsigned*>(args.out)[block * threads + thread] = value;
  // Waits, because a block that ends frees its shared memory, and another block can still read it.
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ inline bool is_complete(unsigned barrier, unsigned parity) {
  unsigned done;
  asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
               : "=r"(done)
               : "r"(barrier), "r"(parity)
               : "memory");
  return done != 0;
}

// out: the box of columns x rows 16-bit elements at (args.x, args.y) of a two-dimensional tensor, in its shared-memory
// layout.
template <int columns, int rows>
__device__ void load_box(const FacilitiesArgs& args) {
  __shared__ alignas(1024) unsigned short box[rows * columns];  // a 128-byte swizzle repeats every 1024 bytes
  __shared__ alignas(8) unsigned long long barrier;
  const unsigned barrier_at = shared_address_of(&barrier), box_at = shared_address_of(box);
  for (unsigned i = threadIdx.x; i < rows * columns; i += blockDim.x) box[i] = 0xffff;
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier_at) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  // The generic proxy wrote the poison above; the async proxy writes the box.
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    // All bytes of the box are counted, including those filled with zeros.
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier_at),
                 "r"(static_cast<unsigned>(sizeof box))
                 : "memory");
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
        "[%4];" ::"r"(box_at),
        "l"(&args.map), "r"(args.x), "r"(args.y), "r"(barrier_at)
        : "memory");
  }
  while (!is_complete(barrier_at, 0)) {
  }
  for (unsigned i = threadIdx.x; i < rows * columns; i += blockDim.x)
    static_cast<unsigned short*>(args.out)[i] = box[i];
}

__device__ inline unsigned read_acquired(const unsigned* address) {
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

// All blocks of the grid wait for each other: only a cooperative launch guarantees that this ends. The counter starts
// at a multiple of the number of blocks.
__device__ inline void grid_barrier(unsigned* counter) {
  __syncthreads();
  if (threadIdx.x == 0) {
    const unsigned blocks = gridDim.x;
    __threadfence();
    const unsigned goal = (atomicAdd(counter, 1) / blocks + 1) * blocks;
    while (read_acquired(counter) < goal) {
    }
    __threadfence();
  }
  __syncthreads();
}

// out[0, blocks): the first value that each block writes. out[blocks, 2 * blocks): the value that the previous block in
// the ring wrote, read after a barrier. Then the same again with the second values.
__device__ inline void meet_in_grid(const FacilitiesArgs& args) {
  unsigned* out = static_cast<unsigned*>(args.out);
  const unsigned block = blockIdx.x, blocks = gridDim.x, before = (block + blocks - 1) % blocks;
  if (threadIdx.x == 0) out[block] = 7 * block + 1;
  grid_barrier(args.counter);
  if (threadIdx.x == 0) out[blocks + block] = read_acquired(out + before);
  grid_barrier(args.counter);
  if (threadIdx.x == 0) out[2 * blocks + block] = read_acquired(out + blocks + before);
}

}  // namespace rapt::test
