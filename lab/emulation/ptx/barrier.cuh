// Stand-ins of ptx/barrier.cuh for emulated kernels (cuda_emulation.h). A copy that arrives on a barrier happens as
// late as possible: when a thread waits for the barrier. The include path finds this file before the real one.
#pragma once

#include <cstring>
#include <utility>
#include <vector>

#include "ptx/copy.cuh"

namespace rapt {

struct EmulatedBarrier {  // stored in the 8 bytes of a real mbarrier
  unsigned short count, pending;
  unsigned phase;  // number of completed phases
};

struct EmulatedArrival {  // the arrival of a thread, which happens after its copies
  unsigned barrier;
  std::vector<EmulatedCopy> copies;
};
inline std::vector<EmulatedArrival>& emulated_arrivals() {
  static std::vector<EmulatedArrival> open;
  return open;
}

inline void mbarrier_init(unsigned barrier, int count) {
  const auto all = static_cast<unsigned short>(count);
  emulated_store(barrier, EmulatedBarrier{all, all, 0});
  std::erase_if(emulated_arrivals(), [=](const EmulatedArrival& one) { return one.barrier == barrier; });
}

inline void mbarrier_arrive(unsigned barrier) {
  auto state = emulated_load<EmulatedBarrier>(barrier);
  if (--state.pending == 0) state.pending = state.count, ++state.phase;
  emulated_store(barrier, state);
  cuda_emulation::block().note_progress();
}

// All copies that this thread has started arrive on the barrier when they are complete. The emulation then forgets the
// groups of these copies, so the thread must not also wait for these groups.
inline void cp_async_mbarrier_arrive(unsigned barrier) {
  EmulatedCopies& thread = emulated_copies();
  EmulatedArrival arrival{barrier, {}};
  for (const std::vector<EmulatedCopy>& group : thread.groups)
    arrival.copies.insert(arrival.copies.end(), group.begin(), group.end());
  arrival.copies.insert(arrival.copies.end(), thread.open.begin(), thread.open.end());
  thread = {};
  emulated_arrivals().push_back(std::move(arrival));
  cuda_emulation::block().note_progress();
}

inline bool mbarrier_is_complete(unsigned barrier, unsigned parity) {
  std::vector<EmulatedArrival> others;
  for (EmulatedArrival& arrival : std::exchange(emulated_arrivals(), {})) {
    if (arrival.barrier != barrier) {
      others.push_back(std::move(arrival));
      continue;
    }
    for (const EmulatedCopy& copy : arrival.copies) emulated_copy(copy);
    mbarrier_arrive(barrier);
  }
  emulated_arrivals() = std::move(others);
  return emulated_load<EmulatedBarrier>(barrier).phase % 2 != parity;
}
inline void mbarrier_wait(unsigned barrier, unsigned parity) {
  while (!mbarrier_is_complete(barrier, parity)) cuda_emulation::block().pause();
}

}  // namespace rapt
