// The progress of the slow loops of check/: the current stage, and how many of its steps are done. The loops write it,
// which costs one addition per step, and lab/progress.h shows it.
#pragma once

#include <atomic>
#include <cstdint>

namespace rapt::check {

struct Work {
  std::atomic<const char*> stage{nullptr};   // name of the current stage ("float64 oracle"); null: no stage
  std::atomic<int64_t> done{0}, total{0};    // numbers of steps; total is 0 if it is unknown
  std::atomic<void (*)()> changed{nullptr};  // called when a stage begins
};
Work& work();

inline void step_done() { work().done.fetch_add(1, std::memory_order_relaxed); }

// A stage that lasts as long as this object. While an inner stage lasts, it replaces the outer one.
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
