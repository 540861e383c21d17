// TraceBuffer: the memory in which a traced kernel stores its marks (device/trace.cuh). Compiled by host and device.
#pragma once

namespace rapt {

// The data that one warp stores at the begin and at the end of its work.
struct TraceWarp {
  unsigned long long begin_ns, begin_cycles, end_ns, end_cycles;  // 0: not reached
  unsigned long long sm;                                          // the number of its multiprocessor
};

// Each mark has its own place. marks[cta][warp][step][stage] is a number of cycles, or 0 if the warp did not reach it.
struct TraceBuffer {
  unsigned long long* marks;
  TraceWarp* of_warps;                  // [cta][warp]
  unsigned* lost;                       // set to 1 if a step has no place
  unsigned ctas, warps, steps, stages;  // CTAs beyond `ctas` store nothing
};

}  // namespace rapt
