// The clocks of a GPU and the multiprocessor's number (PTX ISA 9.0, section 10). Device only; for kernels that are
// compiled with RAPT_TRACE_ON (device/trace.cuh).
#pragma once

namespace rapt {

// Returns the cycle counter of this multiprocessor. The compiler does not move this instruction across other volatile
// instructions or accesses to memory.
inline unsigned long long sm_cycles() {
  unsigned long long cycles;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(cycles)::"memory");
  return cycles;
}

// Returns a time in nanoseconds that is the same on all multiprocessors. The resolution depends on the GPU: from 32 ns
// to about 1 us.
inline unsigned long long global_nanoseconds() {
  unsigned long long ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns)::"memory");
  return ns;
}

inline unsigned sm_number() {
  unsigned number;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(number));
  return number;
}

}  // namespace rapt
