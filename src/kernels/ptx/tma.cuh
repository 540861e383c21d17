// Bulk tensor copies (TMA), the barriers that count their bytes, and the tools of specialised warps, for sm_90a
// (PTX ISA 9.0, sections 9.7.9.27, 9.7.13.15). Device only.
#pragma once

#include "shared/tensor_map.h"

namespace rapt {

inline void prefetch_map(const TensorMap& map) { asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory"); }

// Functions for mbarriers. `barrier` is the address in shared memory of an mbarrier, which has 8 bytes. A phase ends
// after `arrivals` arrivals and all expected bytes. parity: the parity of the phase to wait for; the first phase has 0.
inline void init_barrier(unsigned barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// The thread that initialises barriers calls this afterwards. Other threads can use the barriers after a later barrier
// of the block (__syncthreads).
inline void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
inline void arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
inline void arrive_expecting(unsigned barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Returns whether wait_barrier() would return at once.
inline bool barrier_completed(unsigned barrier, unsigned parity) {
  unsigned done;
  asm volatile(
      "{\n.reg .pred done;\nmbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\nselp.u32 %0, 1, 0, done;\n}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}
inline void wait_barrier(unsigned barrier, unsigned parity) {
  asm volatile(
      "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}" ::
          "r"(barrier),
      "r"(parity)
      : "memory");
}

// Returns true in one lane of the warp. All lanes call it. ptxas knows that code under this condition runs once in a
// warp. Under a condition such as threadIdx.x % 32 == 0 it makes a loop over the lanes around each bulk copy, which
// takes much longer (docs/lab-notebook.md).
inline bool elect_lane() {
  unsigned yes;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(yes));
  return yes != 0;
}

// Copies a box of a tensor of four dimensions. The coordinates are those of the box's first element, the innermost
// dimension first. Elements outside the tensor become zero, and count among the expected bytes.
inline void copy_box(unsigned to, const TensorMap& map, unsigned barrier, int x, int row, int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
      "[%6];" ::"r"(to),
      "l"(&map), "r"(x), "r"(row), "r"(head), "r"(batch), "r"(barrier)
      : "memory");
}

// Copies a box of paged K or V, a tensor of five dimensions: channels, rows of a group of eight, columns, groups, and
// places (page_map in sm90/launch.cpp). The box has all rows of its groups and all of its columns.
inline void copy_page(unsigned to, const TensorMap& map, unsigned barrier, int channel, int row_group, int place) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %3, %4, "
      "%5}], [%6];" ::"r"(to),
      "l"(&map), "r"(channel), "r"(0), "r"(row_group), "r"(place), "r"(barrier)
      : "memory");
}

// Call this between ordinary accesses to shared memory and wgmma or bulk copies that use the same bytes.
inline void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// The same for global memory. Writers call it after their writes, and readers before their bulk copies.
inline void fence_async_proxy_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// Barriers for some of a block's threads. id: 1 to 15 (0 is __syncthreads). threads: the number of threads that wait or
// only arrive, a multiple of 32.
inline void wait_named(unsigned id, unsigned threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// Like wait_named(). Returns whether `vote` is true for one of the threads.
inline bool any_of_named(unsigned id, unsigned threads, bool vote) {
  unsigned any;
  asm volatile(
      "{\n.reg .pred vote, any;\nsetp.ne.u32 vote, %3, 0;\nbar.red.or.pred any, %1, %2, vote;\n"
      "selp.u32 %0, 1, 0, any;\n}"
      : "=r"(any)
      : "r"(id), "r"(threads), "r"(static_cast<unsigned>(vote))
      : "memory");
  return any != 0;
}
inline void arrive_named(unsigned id, unsigned threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Sets the number of registers of each thread of the warpgroup from here on. `registers` must be a multiple of 8, from
// 24 to 256.
template <int registers>
inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
inline void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

}  // namespace rapt
