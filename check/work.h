// What the slow loops of check/ are at, for whoever shows it (lab/progress.h): one stage at a time, and how many of how
// many steps of it are done. Written by those loops; costs an addition a step.
#pragma once

#include <atomic>
#include <cstdint>

namespace rapt::check {

struct Work {
  std::atomic<const char*> stage{nullptr};   // "float64 oracle"; null = nothing that is told
  std::atomic<int64_t> done{0}, total{0};    // total 0 = nobody knows
  std::atomic<void (*)()> changed{nullptr};  // called when a stage begins
};
Work& work();

inline void step_done() { work().done.fetch_add(1, std::memory_order_relaxed); }

// A stage as long as it lives. One inside another stands in its place meanwhile.
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
