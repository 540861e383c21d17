// The progress of the slow loops of check/, for display (lab/progress.h): the current stage, and how many of its steps
// are done. Written by those loops; costs one addition per step.
#pragma once

#include <atomic>
#include <cstdint>

namespace rapt::check {

struct Work {
  std::atomic<const char*> stage{nullptr};   // "float64 oracle"; null: no stage
  std::atomic<int64_t> done{0}, total{0};    // total 0: unknown
  std::atomic<void (*)()> changed{nullptr};  // called when a stage begins
};
Work& work();

inline void step_done() { work().done.fetch_add(1, std::memory_order_relaxed); }

// A stage that lasts as long as this object. An inner stage replaces the outer one meanwhile.
class Stage {
 public:
  explicit Stage(const char* name, int64_t total = 0);
  ~Stage();
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

 private:
  const char* const before_;
  const int64_t done_before_, total_before_;
};

}  // namespace rapt::check
