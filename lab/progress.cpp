// A line on the terminal that says how far something has come.
// Called by check and bench.
#include "lab/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

namespace rapt::lab {

void Progress::at(size_t index, const std::string& what) {
  using namespace std::chrono_literals;
  if (!isatty(STDERR_FILENO) || std::chrono::steady_clock::now() - begin_ < 1s) return;
  fmt::print(stderr, "\r\x1b[K[{}/{}] {:.100}", index + 1, total_, what);
  std::fflush(stderr);
  shown_ = true;
}

void Progress::clear() noexcept {
  if (!shown_) return;
  std::fputs("\r\x1b[K", stderr);
  std::fflush(stderr);
  shown_ = false;
}

}  // namespace rapt::lab
