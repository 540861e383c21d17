// Time stamps of the stages of a kernel, for rapt profile --trace (docs/lab.md). The lab compiles a unit with
// "#define RAPT_TRACE_ON" before it. In every other build the macros are empty. Device only.
//
//   RAPT_TRACE_STAGES("producer: wait|producer: copy|consumer: wait|consumer: QK")   once in a unit, outside functions
//   RAPT_TRACE_BEGIN("producer: wait"); every warp calls it at the begin of the kernel, with the warp's first stage
//   RAPT_TRACE("consumer: QK", step);   a stage begins; it lasts until the warp's next mark. step: how many times this
//                                       warp has begun this stage before
//   RAPT_TRACE_NEXT("consumer: QK");    like RAPT_TRACE, for kernels that do not know the step: a counter in shared
//                                       memory gives it
//   RAPT_TRACE_NEXT_IF(waits, "consumer: wait K");  RAPT_TRACE_NEXT for a wait that is often over at once. Without the
//                                       mark, the wait counts for the stage before it. `waits` is evaluated only if
//                                       the trace is on
//   RAPT_TRACE_COUNTERS();              every warp of a kernel with RAPT_TRACE_NEXT calls it after RAPT_TRACE_BEGIN
//   RAPT_TRACE_END();                   every warp calls it at the end of the kernel, also before an early return
//
// The part of a stage's name before ": " is the warp's role. The lab replaces a "#" in the role by the number of the
// warp's warpgroup. If some role has a "#", only one warp of each warpgroup stores marks, because marks cost time and
// the warps of a warpgroup do the same. Lane 0 of the warp stores the mark, so lane 0 must reach the mark. The other
// lanes need not reach it. Blocks have one dimension. The compiler can move arithmetic across a mark, but not barriers,
// waits, or accesses to memory. A mark is taken when the stage's first instruction is issued. At that time the last
// matrix products of the previous stage can still be running.
#pragma once

#include "ptx/clock.cuh"
#include "ptx/copy.cuh"
#include "shared/trace_buffer.h"

#if defined(RAPT_TRACE_ON)

// The lab sets this before the launch. It is a constant, so that marks read its fields through the constant cache.
extern "C" {
__constant__ rapt::TraceBuffer rapt_trace_buffer;
}

namespace rapt {

// Returns the index of `name` in "a|b|c", or no_trace_stage.
constexpr unsigned no_trace_stage = ~0u;
constexpr unsigned trace_stage(const char* list, const char* name) {
  unsigned stage = 0;
  for (const char* at = list;; ++at, ++stage) {
    int same = 0;
    while (name[same] != '\0' && at[same] == name[same]) ++same;
    if (name[same] == '\0' && (at[same] == '\0' || at[same] == '|')) return stage;
    while (*at != '|' && *at != '\0') ++at;
    if (*at == '\0') return no_trace_stage;
  }
}

constexpr unsigned trace_stage_count(const char* list) {
  unsigned count = 1;
  for (; *list != '\0'; ++list) count += *list == '|';
  return count;
}

// Returns whether the stages have roles of warpgroups.
constexpr bool trace_has_warpgroups(const char* list) {
  for (; *list != '\0'; ++list)
    if (*list == '#') return true;
  return false;
}

// Returns whether this thread stores marks. With `warpgroups`, warp n % 4 of warpgroup n stores them, so that the
// schedulers of a multiprocessor share the cost. Because of volatile_copy, each mark computes the place again. A stored
// place would need a register, and registers are scarce in a main loop.
template <bool warpgroups>
inline bool trace_place(unsigned& place) {
  const unsigned thread = volatile_copy(threadIdx.x);
  const unsigned cta = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  place = cta * rapt_trace_buffer.warps + thread / 32;
  const bool stores = warpgroups ? thread % 128 == thread / 128 % 4 * 32 : thread % 32 == 0;
  return cta < rapt_trace_buffer.ctas && stores;
}

inline void store_mark(unsigned place, unsigned stage, unsigned step, unsigned long long cycles) {
  const unsigned row = place * rapt_trace_buffer.steps + step;  // the lab limits the memory, so 32 bits suffice
  rapt_trace_buffer.marks[row * rapt_trace_buffer.stages + stage] = cycles;
}

template <bool warpgroups>
inline void trace_mark(unsigned stage, unsigned step) {
  const unsigned long long cycles = sm_cycles();
  unsigned place;
  if (!trace_place<warpgroups>(place)) return;
  if (step >= rapt_trace_buffer.steps) {
    *rapt_trace_buffer.lost = 1;
    return;
  }
  store_mark(place, stage, step, cycles);
}

// The number of marks that a warp of this block has stored for a stage. These counters are in shared memory, because a
// counter in global memory would make each mark wait for about 500 cycles. With 16 bits they take at most 1024 bytes,
// which all shipped kernels leave free.
template <unsigned stages>
inline unsigned short& trace_counter(unsigned stage) {
  constexpr unsigned most_warps = 32;  // of a block on every GPU
  __shared__ unsigned short counters[most_warps * stages];
  return counters[volatile_copy(threadIdx.x) / 32 * stages + stage];
}

template <unsigned stages>
inline void trace_clear_counters() {
  if (threadIdx.x % 32 == 0)
    for (unsigned stage = 0; stage < stages; ++stage) trace_counter<stages>(stage) = 0;
}

template <unsigned stages, bool warpgroups>
inline void trace_next(unsigned stage) {
  const unsigned long long cycles = sm_cycles();
  unsigned place;
  if (!trace_place<warpgroups>(place)) return;
  unsigned short& count = trace_counter<stages>(stage);
  const unsigned step = count;
  constexpr unsigned most_steps = 0xffff;
  if (step >= rapt_trace_buffer.steps || step == most_steps) {
    *rapt_trace_buffer.lost = 1;
    return;
  }
  count = static_cast<unsigned short>(step + 1);
  store_mark(place, stage, step, cycles);
}

template <bool warpgroups>
inline void trace_begin() {
  unsigned place;
  if (!trace_place<warpgroups>(place)) return;
  TraceWarp& warp = rapt_trace_buffer.of_warps[place];
  warp.begin_ns = global_nanoseconds(), warp.sm = sm_number(), warp.begin_cycles = sm_cycles();
}

template <bool warpgroups>
inline void trace_end() {
  const unsigned long long cycles = sm_cycles(), ns = global_nanoseconds();
  unsigned place;
  if (!trace_place<warpgroups>(place)) return;
  TraceWarp& warp = rapt_trace_buffer.of_warps[place];
  warp.end_cycles = cycles, warp.end_ns = ns;
}

}  // namespace rapt

#define RAPT_TRACE_STAGES(list)                                         \
  namespace rapt {                                                      \
  constexpr char trace_stages[] = list;                                 \
  constexpr bool trace_warpgroups = trace_has_warpgroups(trace_stages); \
  }
#define RAPT_TRACE(name, step)                                                                              \
  do {                                                                                                      \
    constexpr unsigned marked_stage = rapt::trace_stage(rapt::trace_stages, name);                          \
    static_assert(marked_stage != rapt::no_trace_stage, "RAPT_TRACE: must be a name of RAPT_TRACE_STAGES"); \
    rapt::trace_mark<rapt::trace_warpgroups>(marked_stage, static_cast<unsigned>(step));                    \
  } while (false)
#define RAPT_TRACE_NEXT(name)                                                                                    \
  do {                                                                                                           \
    constexpr unsigned marked_stage = rapt::trace_stage(rapt::trace_stages, name);                               \
    static_assert(marked_stage != rapt::no_trace_stage, "RAPT_TRACE_NEXT: must be a name of RAPT_TRACE_STAGES"); \
    rapt::trace_next<rapt::trace_stage_count(rapt::trace_stages), rapt::trace_warpgroups>(marked_stage);         \
  } while (false)
#define RAPT_TRACE_NEXT_IF(waits, name) \
  do {                                  \
    if (waits) RAPT_TRACE_NEXT(name);   \
  } while (false)
#define RAPT_TRACE_BEGIN(name)                   \
  do {                                           \
    rapt::trace_begin<rapt::trace_warpgroups>(); \
    RAPT_TRACE(name, 0);                         \
  } while (false)
#define RAPT_TRACE_COUNTERS() rapt::trace_clear_counters<rapt::trace_stage_count(rapt::trace_stages)>()
#define RAPT_TRACE_END() rapt::trace_end<rapt::trace_warpgroups>()

#else

#define RAPT_TRACE_STAGES(list)
#define RAPT_TRACE(name, step) static_cast<void>(0)
#define RAPT_TRACE_NEXT(name) static_cast<void>(0)
#define RAPT_TRACE_NEXT_IF(waits, name) static_cast<void>(0)
#define RAPT_TRACE_BEGIN(name) static_cast<void>(0)
#define RAPT_TRACE_COUNTERS() static_cast<void>(0)
#define RAPT_TRACE_END() static_cast<void>(0)

#endif
