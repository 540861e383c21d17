// Stand-ins of ptx/clock.cuh for emulated kernels. All multiprocessors share one clock. Each read of it returns one
// cycle and one nanosecond more than the read before. Block b runs on multiprocessor b % 4.
#pragma once

namespace rapt {

inline unsigned long long emulated_ticks() {
  static unsigned long long ticks = 1000;
  return ++ticks;
}
inline unsigned long long sm_cycles() { return emulated_ticks(); }
inline unsigned long long global_nanoseconds() { return emulated_ticks(); }
inline unsigned sm_number() { return blockIdx.x % 4; }

}  // namespace rapt
