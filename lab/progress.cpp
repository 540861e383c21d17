// A progress line on the terminal.
// Called by the commands. check/work.h reports the progress within an item.
#include "lab/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>

#include "base/signals.h"
#include "check/work.h"
#include "lab/output.h"

namespace rapt::lab {
namespace {

using namespace std::chrono_literals;

// The progress line that is woken when a stage begins. The mutex is held while it is woken, so that it is not
// destroyed.
std::mutex current_mutex;
Progress* current = nullptr;

void wake_current() {
  const std::lock_guard lock(current_mutex);
  if (current != nullptr) current->wake();
}

}  // namespace

Progress::Progress(size_t total) : total_(total), on_terminal_(isatty(STDERR_FILENO) != 0) {
  if (!on_terminal_) return;
  {
    const std::lock_guard lock(current_mutex);
    current = this;
  }
  check::work().changed = wake_current;
  const SignalBlock in_ticker(signals_for_other_threads());  // see cpu/threads.cpp
  ticker_ = std::thread([this] { tick(); });
}

Progress::~Progress() {
  if (!on_terminal_) return;
  check::work().changed = nullptr;
  {
    const std::lock_guard lock(current_mutex);
    current = nullptr;
  }
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  ticker_.join();
  clear();
}

bool Progress::told() const { return at_item_ && check::work().stage.load() != nullptr; }

void Progress::wake() {
  const std::lock_guard lock(mutex_);  // otherwise a stage could begin between the ticker's check and its sleep
  wake_.notify_all();
}

void Progress::tick() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    wake_.wait(lock, [this] { return stop_ || told(); });
    const auto shown_from = begin_ + 1s, next = Clock::now() + 250ms;
    wake_.wait_until(lock, std::max(shown_from, next), [this] { return stop_; });
    if (!stop_ && told()) draw();
  }
}

void Progress::draw() {
  std::string stage;
  const check::Work& work = check::work();
  if (const char* name = work.stage.load()) {
    const int64_t done = work.done, total = work.total;
    stage = fmt::format(": {}{}, {} s", name,
                        total > 0 ? fmt::format(" {}%", std::min<int64_t>(99, 100 * done / total)) : "",
                        std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - item_begin_).count());
  }
  print_error("\r\x1b[K{:.100}{}", what_, stage);
  std::fflush(stderr);
  shown_ = true;
}

void Progress::at(size_t index, const std::string& what) {
  if (!on_terminal_) return;
  const std::lock_guard lock(mutex_);
  what_ = fmt::format("[{}/{}] {}", index + 1, total_, what);
  item_begin_ = Clock::now();
  at_item_ = true;
  if (item_begin_ - begin_ >= 1s) draw();
  wake_.notify_all();
}

void Progress::clear() noexcept {
  const std::lock_guard lock(mutex_);
  at_item_ = false;
  if (!shown_) return;
  std::fputs("\r\x1b[K", stderr);
  std::fflush(stderr);
  shown_ = false;
}

}  // namespace rapt::lab
