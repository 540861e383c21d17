// Where a kernel that is compiled with RAPT_TRACE stores its marks (device/trace.cuh). Compiled by host and device.
#pragma once

namespace rapt {

// What one warp stores at the begin and at the end of its work.
struct TraceWarp {
  unsigned long long begin_ns, begin_cycles, end_ns, end_cycles;  // 0: it did not get there
  unsigned long long sm;                                          // the number of its multiprocessor
};

// A mark has its own place. marks: [cta][warp][step][stage], cycles, 0: not reached.
struct TraceBuffer {
  unsigned long long* marks;
  TraceWarp* of_warps;                  // [cta][warp]
  unsigned* counts;                     // [cta][warp][stage] marks whose step the warp does not know (RAPT_TRACE_NEXT)
  unsigned* lost;                       // set to 1 if a step has no place
  unsigned ctas, warps, steps, stages;  // CTAs beyond `ctas` store nothing
};

}  // namespace rapt
