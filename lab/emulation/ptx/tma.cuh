// Stand-ins of ptx/tma.cuh for emulated kernels (cuda_emulation.h). Half of the copies, chosen at random, happen
// immediately. The others happen as late as possible: when a thread waits for their barrier. A tensor map's bytes are
// an EmulatedMap. The include path finds this file before the real one.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "ptx/copy.cuh"
#include "shared/tensor_map.h"

namespace rapt {

using cuda_emulation::EmulatedMap;
static_assert(sizeof(EmulatedMap) <= sizeof(TensorMap));

inline void prefetch_map(const TensorMap&) {}

struct EmulatedBarrier {
  unsigned short arrivals, missing;
  int bytes_and_phase;  // 2 * expected bytes + parity of the current phase
};
static_assert(sizeof(EmulatedBarrier) == 8);
inline EmulatedBarrier& emulated_barrier(unsigned address) {
  return *reinterpret_cast<EmulatedBarrier*>(emulated_shared + address);
}
inline void settle(EmulatedBarrier& barrier) {
  if (barrier.missing != 0 || barrier.bytes_and_phase >> 1 != 0) return;
  barrier.missing = barrier.arrivals;
  barrier.bytes_and_phase ^= 1;
  cuda_emulation::block().note_progress();
}
inline void init_barrier(unsigned barrier, unsigned arrivals) {
  const auto count = static_cast<unsigned short>(arrivals);
  emulated_barrier(barrier) = {count, count, 0};
}
inline void fence_barrier_init() {}
inline void arrive(unsigned barrier) {
  if (emulated_barrier(barrier).missing == 0) cuda_emulation::block().fail("too many arrivals at a barrier");
  --emulated_barrier(barrier).missing;
  settle(emulated_barrier(barrier));
}
inline void arrive_expecting(unsigned barrier, unsigned bytes) {
  emulated_barrier(barrier).bytes_and_phase += static_cast<int>(bytes) * 2;
  arrive(barrier);
}
struct EmulatedBox {
  unsigned to, barrier;
  EmulatedMap map;
  int at[5];
};
inline std::vector<EmulatedBox>& emulated_boxes() {  // copies that are under way
  static std::vector<EmulatedBox> boxes;
  return boxes;
}
inline void finish_boxes(unsigned barrier);

inline bool barrier_completed(unsigned barrier, unsigned parity) {
  finish_boxes(barrier);
  return (emulated_barrier(barrier).bytes_and_phase & 1) != static_cast<int>(parity);
}
inline void wait_barrier(unsigned barrier, unsigned parity) {
  while (!barrier_completed(barrier, parity)) cuda_emulation::block().pause();
}

inline unsigned swizzled(unsigned address, int span) {
  return address ^ ((address >> 7 & (static_cast<unsigned>(span) / 16 - 1)) << 4);
}

inline void finish_box(const EmulatedBox& box) {
  const EmulatedMap& m = box.map;
  int elements = 1;
  for (const int size : m.box) elements *= size;
  for (int i = 0; i < elements; ++i) {
    bool inside = true;
    long offset = 0;
    for (int d = 0, rest = i; d < 5; rest /= m.box[d++]) {
      const long at = box.at[d] + rest % m.box[d];
      inside = inside && at >= 0 && at < m.sizes[d];
      offset += at * (d == 0 ? m.element_bytes : m.strides[d - 1]);
    }
    unsigned element = 0;
    const auto bytes = static_cast<unsigned>(m.element_bytes), to = box.to + static_cast<unsigned>(i) * bytes;
    if (inside) std::memcpy(&element, m.base + offset, bytes);
    std::memcpy(emulated_shared + swizzled(to, m.swizzle), &element, bytes);
  }
  emulated_barrier(box.barrier).bytes_and_phase -= elements * m.element_bytes * 2;
  settle(emulated_barrier(box.barrier));
}
inline void finish_boxes(unsigned barrier) {
  std::vector<EmulatedBox>& boxes = emulated_boxes();
  const auto others = std::stable_partition(boxes.begin(), boxes.end(),
                                            [barrier](const EmulatedBox& box) { return box.barrier != barrier; });
  std::for_each(others, boxes.end(), finish_box);
  boxes.erase(others, boxes.end());
}
inline void begin_box(unsigned to, const TensorMap& map, unsigned barrier, const int (&at)[5]) {
  if (to % 1024 != 0) cuda_emulation::block().fail("a box must begin at a multiple of 1024 bytes");
  EmulatedBox box{to, barrier, {}, {at[0], at[1], at[2], at[3], at[4]}};
  std::memcpy(&box.map, &map, sizeof box.map);
  static unsigned random = 1;
  random = random * 1664525u + 1013904223u;  // the generator of Numerical Recipes delays the same copies in every run
  random >> 31 ? finish_box(box) : emulated_boxes().push_back(box);
}
inline bool elect_lane() { return threadIdx.x % 32 == 0; }
inline void copy_box(unsigned to, const TensorMap& map, unsigned barrier, int x, int row, int head, int batch) {
  begin_box(to, map, barrier, {x, row, head, batch, 0});
}
inline void copy_page(unsigned to, const TensorMap& map, unsigned barrier, int channel, int row_group, int place) {
  begin_box(to, map, barrier, {channel, 0, 0, row_group, place});
}

inline void fence_async_proxy() {}
inline void fence_async_proxy_global() {}

inline void wait_named(unsigned id, unsigned threads) { cuda_emulation::block().wait_named(id, threads); }
inline bool any_of_named(unsigned id, unsigned threads, bool vote) {
  static bool any[16];
  any[id] = any[id] || vote;
  wait_named(id, threads);
  const bool result = any[id];
  wait_named(id, threads);  // nobody changes the result before all have read it
  any[id] = false;
  wait_named(id, threads);
  return result;
}
inline void arrive_named(unsigned id, unsigned threads) { cuda_emulation::block().arrive_named(id, threads); }

template <int registers>
inline void take_registers() {}
template <int registers>
inline void give_registers() {}

}  // namespace rapt
