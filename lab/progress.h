// A progress line on the terminal. It shows the current item, and the progress of the slow loops of check/. It appears
// if the work takes longer than a second. Called by the commands. Prints nothing if stderr is not a terminal.
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

  // Must be called before each item. index: the number of the item, counted from 0. what: its name.
  void at(size_t index, const std::string& what);
  // Removes the line. Must be called before other text is printed. The next item shows the line again.
  void clear() noexcept;
  void wake();  // called when a stage begins

 private:
  using Clock = std::chrono::steady_clock;
  void tick();  // runs in the thread; sleeps while no stage is active, so it does not disturb timing
  void draw();
  bool told() const;

  const Clock::time_point begin_ = Clock::now();
  const size_t total_;
  const bool on_terminal_;
  std::mutex mutex_;  // guards all members below
  std::condition_variable wake_;
  std::string what_;
  Clock::time_point item_begin_ = begin_;
  bool at_item_ = false, shown_ = false, stop_ = false;
  std::thread ticker_;
};

}  // namespace rapt::lab
