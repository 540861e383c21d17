// A line on the terminal that says how far something has come, from its first second on: which item, and how far the
// slow loops of check/ are with it. Called by the commands; silent where stderr is no terminal.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace rapt::lab {

class Progress {
 public:
  explicit Progress(size_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // About to do item `index` (from 0), called `what`.
  void at(size_t index, const std::string& what);
  // Takes the line away, before something else is printed; the next item brings it back.
  void clear() noexcept;
  void wake();  // a stage has begun

 private:
  using Clock = std::chrono::steady_clock;
  void tick();  // the thread: it sleeps where no stage is told, so that it disturbs no timing
  void draw();
  bool told() const;

  const Clock::time_point begin_ = Clock::now();
  const size_t total_;
  const bool on_terminal_;
  std::mutex mutex_;  // of all below
  std::condition_variable wake_;
  std::string what_;
  Clock::time_point item_begin_ = begin_;
  bool at_item_ = false, shown_ = false, stop_ = false;
  std::thread ticker_;
};

}  // namespace rapt::lab
