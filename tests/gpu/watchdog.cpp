// Implements watchdog.h.
#include "watchdog.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "base/error.h"
#include "gpu_support.h"

namespace rapt::test {
namespace {

using Clock = std::chrono::steady_clock;

// A message of a child: a kind, then text up to a NUL. It is short enough to be written to the pipe in one piece.
enum class Kind : char { selected = 'n', test = 't', problem = 'p', solved = 's', failed = 'f', ended = 'e' };
constexpr size_t longest_message = 4000;
static_assert(longest_message + 2 <= 4096);

// The first lines of a failure's message.
std::string first_lines(const std::string& text, int count) {
  size_t end = 0;
  for (int line = 0; line < count && end != std::string::npos; ++line) end = text.find('\n', line == 0 ? 0 : end + 1);
  return text.substr(0, end);
}

// Collects the messages of all children. If there are no children, the process that runs the tests adds its messages
// directly.
class Account {
 public:
  void take(Kind kind, const std::string& text) {
    const std::lock_guard lock(mutex_);  // without children, the tests' own threads add messages
    switch (kind) {
      case Kind::selected: selected_ = std::atoi(text.c_str()); break;
      case Kind::test: begin(text); break;
      case Kind::problem: problems_.push_back(text); break;
      case Kind::solved: forget(text); break;
      case Kind::failed: failures_.push_back(text); break;
      case Kind::ended: end(text); break;
    }
  }
  void begin_child() {
    begun_before_ = begun_.size();
    selected_ = -1;
    skipped_ += skipped_by_child_;
    run_ += run_by_child_;
    skipped_by_child_ = run_by_child_ = 0;
    running_.clear();
    problems_.clear();
  }
  // Called if the child's process ended, or if its time is over. `what` says what happened to its current test.
  void lose_child(const std::string& what) {
    std::string text = concat(running_.empty() ? "(outside a test)" : running_, ": ", what);
    if (!running_.empty()) ++run_by_child_;
    if (!problems_.empty()) text += ", last problem " + problems_.back();
    const size_t count = problems_.size(), named = std::min<size_t>(count, 5);
    for (size_t i = 1; i < named; ++i) text += "\n  also not ended: " + problems_[count - 1 - i];
    if (count > named) text += concat("\n  and ", count - named, " more");
    std::printf("FAILED %s\n", text.c_str());
    std::fflush(stdout);
    failures_.push_back(text);
  }
  // True if the child has started all remaining tests.
  bool complete() const { return selected_ >= 0 && begun_.size() - begun_before_ >= static_cast<size_t>(selected_); }
  bool in_a_test() const { return !running_.empty(); }
  bool stuck() const { return begun_.size() == begun_before_; }  // the child began no test, so the next would not, too
  const std::vector<std::string>& begun() const { return begun_; }
  bool failed() const { return !failures_.empty(); }

  void print() const {
    std::printf("GPU test cases: %d skipped, %d run (%s)\n", skipped_ + skipped_by_child_, run_ + run_by_child_,
                about_gpu().c_str());
    for (const std::string& failure : failures_) std::printf("failed: %s\n", failure.c_str());
    std::fflush(stdout);
  }

 private:
  void begin(const std::string& test) {
    running_ = test;
    begun_.push_back(test);
    problems_.clear();
  }
  void end(const std::string& counts) {
    running_.clear();
    std::sscanf(counts.c_str(), "%d %d", &skipped_by_child_, &run_by_child_);
  }
  void forget(const std::string& problem) {
    const auto at = std::find(problems_.begin(), problems_.end(), problem);
    if (at != problems_.end()) problems_.erase(at);
  }

  std::mutex mutex_;
  std::vector<std::string> begun_, problems_, failures_;
  std::string running_;
  size_t begun_before_ = 0;
  int selected_ = -1, skipped_ = 0, run_ = 0, skipped_by_child_ = 0, run_by_child_ = 0;
};

Account account;
int to_parent = -1;  // the pipe to the parent; -1 if this process is not a child
bool watched = false;

void say(Kind kind, const std::string& text) {
  if (!watched) return account.take(kind, text);
  std::string message(1, static_cast<char>(kind));
  message += text.substr(0, longest_message);
  message.erase(std::remove(message.begin(), message.end(), '\0'), message.end());
  message += '\0';
  while (write(to_parent, message.data(), message.size()) < 0 && errno == EINTR) {
  }
}

// Reports the progress of the tests. It is used in the process that runs the tests.
class Progress : public testing::EmptyTestEventListener {
  void OnTestIterationStart(const testing::UnitTest& all, int) override {
    say(Kind::selected, std::to_string(all.test_to_run_count()));
  }
  void OnTestStart(const testing::TestInfo& test) override {
    say(Kind::test, concat(test.test_suite_name(), ".", test.name()));
  }
  void OnTestEnd(const testing::TestInfo& test) override {
    if (test.result()->Failed()) say(Kind::failed, report(test));
    say(Kind::ended, concat(GpuTest::skipped_count(), " ", GpuTest::run_count()));
    std::fflush(stdout);  // a child that is killed later loses no output
  }
  void OnTestSuiteEnd(const testing::TestSuite& suite) override {
    if (suite.elapsed_time() > 1000)
      std::printf("%s: %.1f s\n", suite.name(), static_cast<double>(suite.elapsed_time()) / 1000);
    std::fflush(stdout);
  }
  static std::string report(const testing::TestInfo& test) {
    const std::string name = concat(test.test_suite_name(), ".", test.name());
    for (int i = 0; i < test.result()->total_part_count(); ++i) {
      const testing::TestPartResult& part = test.result()->GetTestPartResult(i);
      if (part.failed()) return concat(name, "\n  ", first_lines(part.message(), 8));
    }
    return name;
  }
};

int run_tests() {
  testing::UnitTest::GetInstance()->listeners().Append(new Progress);
  return RUN_ALL_TESTS();
}

[[noreturn]] void be_the_child(int pipe_end, pid_t parent, const std::string& filter) {
  watched = true;
  to_parent = pipe_end;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  GTEST_FLAG_SET(filter, filter);
  std::exit(run_tests());
}

// GoogleTest's filter for the tests that have not started yet.
std::string rest_of(const std::string& filter, const std::vector<std::string>& begun) {
  std::string rest = filter;
  bool has_exclusions = filter.find('-') != std::string::npos;
  for (const std::string& test : begun) {
    rest += concat(has_exclusions ? ":" : "-", test);
    has_exclusions = true;
  }
  return rest;
}

// Reads the child's messages until it closes the pipe. Returns false if no test starts or ends for this long.
bool listen(int pipe_end, std::chrono::seconds limit) {
  std::string heard;
  Clock::time_point deadline = Clock::now() + limit;
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return false;
    pollfd waiting{pipe_end, POLLIN, 0};
    if (poll(&waiting, 1, static_cast<int>(std::min<long long>(left, 1 << 30))) <= 0) continue;
    char part[65536];
    const ssize_t bytes = read(pipe_end, part, sizeof part);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) return true;
    heard.append(part, static_cast<size_t>(bytes));
    for (size_t end; (end = heard.find('\0')) != std::string::npos; heard.erase(0, end + 1)) {
      const Kind kind = static_cast<Kind>(heard[0]);
      account.take(kind, heard.substr(1, end - 1));
      if (kind == Kind::test || kind == Kind::ended) deadline = Clock::now() + limit;
    }
  }
}

// Waits for the child's end, and returns its exit status. If a kernel hangs, the driver can need time to end the
// process. Returns -1 if this takes longer than `patience`.
int end_of(pid_t child, std::chrono::seconds patience) {
  const Clock::time_point deadline = Clock::now() + patience;
  int status = -1;
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (Clock::now() > deadline) return -1;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return status;
}

std::string words_of(int status) {
  if (WIFSIGNALED(status))
    return concat("its process ended by signal ", WTERMSIG(status), " (", strsignal(WTERMSIG(status)), ")");
  return concat("its process ended with code ", WEXITSTATUS(status));
}

// Runs the remaining tests in one child. Returns false if none is left.
bool run_child(const std::string& filter, int seconds, bool& failed) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw Error(ErrorCode::environment, concat("pipe2: ", std::strerror(errno)));
  account.begin_child();
  std::fflush(nullptr);
  const pid_t parent = getpid(), child = fork();
  if (child < 0) throw Error(ErrorCode::environment, concat("fork: ", std::strerror(errno)));
  if (child == 0) {
    close(ends[0]);
    be_the_child(ends[1], parent, rest_of(filter, account.begun()));
  }
  close(ends[1]);
  const bool in_time = listen(ends[0], std::chrono::seconds(seconds));
  close(ends[0]);
  if (!in_time) kill(child, SIGKILL);
  const int status = end_of(child, std::chrono::seconds(in_time ? seconds : 60));
  if (status == -1) kill(child, SIGKILL);
  const bool through = account.complete() && !account.in_a_test();
  if (status == 0 && through) return false;
  failed = true;
  if (!in_time || status == -1)
    account.lose_child(concat("no end after ", seconds, " s"));
  else if (WIFSIGNALED(status) || !through)
    account.lose_child(words_of(status));
  return !account.complete() && !account.stuck();
}

}  // namespace

WorkOn::WorkOn(const std::string& problem) : problem_(problem) { say(Kind::problem, problem_); }
WorkOn::~WorkOn() { say(Kind::solved, problem_); }

int seconds_of_a_test() {
  const char* text = std::getenv("RAPT_GPU_TEST_SECONDS");
  return text == nullptr ? 120 : std::max(0, std::atoi(text));
}

int run_watched(int seconds) {
  bool failed = false;
  if (seconds == 0) {
    failed = run_tests() != 0;
  } else {
    const std::string filter = GTEST_FLAG_GET(filter);
    while (run_child(filter, seconds, failed)) {
    }
  }
  account.print();
  return failed || account.failed() ? 1 : 0;
}

}  // namespace rapt::test
