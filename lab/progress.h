// A line on the terminal that says how far something has come, from its first second on.
// Called by check and bench; silent where stderr is no terminal.
#pragma once

#include <chrono>
#include <string>

namespace rapt::lab {

class Progress {
 public:
  explicit Progress(size_t total) : total_(total) {}
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // About to do item `index` (from 0), called `what`.
  void at(size_t index, const std::string& what);
  // Takes the line away, before something else is printed.
  void clear() noexcept;

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  size_t total_;
  bool shown_ = false;
};

}  // namespace rapt::lab
