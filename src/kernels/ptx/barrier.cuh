// mbarrier objects in shared memory, and the cp.async instruction that arrives on them (PTX ISA 9.0, section
// 9.7.13.15). sm_80 and newer. Device only. Used by lab/ladder; no shipped kernel includes it.
#pragma once

namespace rapt {

// Each phase of the barrier ends after `count` arrivals. Other threads can use the barrier after a __syncthreads().
inline void mbarrier_init(unsigned barrier, int count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

inline void mbarrier_arrive(unsigned barrier) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(barrier) : "memory");
}

// Makes the thread arrive when all its cp.async so far are complete. The function returns at once.
inline void cp_async_mbarrier_arrive(unsigned barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

// Returns whether the phase of this parity is complete. On sm_90 and newer the thread can sleep for a while before the
// answer.
inline bool mbarrier_is_complete(unsigned barrier, unsigned parity) {
  unsigned complete;
#if __CUDA_ARCH__ >= 900
  asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
#else
  asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
#endif
               : "=r"(complete)
               : "r"(barrier), "r"(parity)
               : "memory");
  return complete != 0;
}
inline void mbarrier_wait(unsigned barrier, unsigned parity) {
  while (!mbarrier_is_complete(barrier, parity)) {
  }
}

}  // namespace rapt
