// The clocks of a GPU and the multiprocessor's number (PTX ISA 9.0, section 10). Device only; for kernels that are
// compiled with RAPT_TRACE_ON (device/trace.cuh).
#pragma once

namespace rapt {

// Cycles of this multiprocessor. It stays in place relative to other volatile instructions and accesses to memory.
inline unsigned long long sm_cycles() {
  unsigned long long cycles;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(cycles)::"memory");
  return cycles;
}

// Nanoseconds, the same on all multiprocessors. Its step differs among GPUs: from 32 ns to about 1 us.
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
