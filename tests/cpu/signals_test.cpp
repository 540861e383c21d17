// Tests Ctrl-C while NVRTC compiles. NVRTC replaces the program's signal handlers, so no thread of rapt must accept the
// signal until the handlers are restored. The tests replace NVRTC by a table of their own functions.
#include "base/signals.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "cpu/threads.h"
#include "jit/nvrtc.h"
#include "jit/sources.h"

namespace rapt::test {
namespace {

std::atomic<int> own_handler{0}, compilers_handler{0};

bool is_blocked(int number) {
  sigset_t mask;
  pthread_sigmask(SIG_BLOCK, nullptr, &mask);
  return sigismember(&mask, number) == 1;
}

// Sends each signal to this thread while another handler is installed, as NVRTC does.
int compile_with_another_handler(jit::Nvrtc::Program, int, const char* const*) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    void (*const before)(int) = std::signal(number, [](int) { ++compilers_handler; });
    pthread_kill(pthread_self(), number);
    std::signal(number, before);
  }
  return 6;  // a compilation error: no image is read
}

jit::Nvrtc table() {
  jit::Nvrtc nvrtc{};
  nvrtc.error_string = [](int) { return "an error"; };
  nvrtc.create = [](jit::Nvrtc::Program*, const char*, const char*, int, const char* const*, const char* const*) {
    return 0;
  };
  nvrtc.destroy = [](jit::Nvrtc::Program*) { return 0; };
  nvrtc.compile = compile_with_another_handler;
  nvrtc.log_size = [](jit::Nvrtc::Program, size_t* bytes) { return *bytes = 0, 0; };
  return nvrtc;
}

}  // namespace

TEST(Signals, WaitForTheEndOfTheCompiler) {
  own_handler = compilers_handler = 0;
  std::vector<void (*)(int)> before;
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) before.push_back(std::signal(number, [](int) { ++own_handler; }));
  EXPECT_FALSE(run_nvrtc(table(), {"", {}}, "sm_80").ok);
  EXPECT_EQ(compilers_handler, 0);
  EXPECT_EQ(own_handler, 3) << "each signal reaches the program's own handler";
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) EXPECT_FALSE(is_blocked(number)) << number;
  std::signal(SIGINT, before[0]), std::signal(SIGTERM, before[1]), std::signal(SIGHUP, before[2]);
}

TEST(Signals, WorkersOfAPoolAcceptNone) {
  const std::thread::id caller = std::this_thread::get_id();
  cpu::ThreadPool pool(2);
  ASSERT_EQ(pool.size(), 2);
  std::atomic<int> inside{0}, unblocked{0};
  std::atomic<bool> faults_blocked{false};
  pool.parallel_for(2, [&](int, int64_t) {
    ++inside;
    while (inside < 2) std::this_thread::yield();  // waits, so that each thread gets one index
    if (std::this_thread::get_id() == caller) return;
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGALRM}) unblocked += !is_blocked(number);
    faults_blocked = is_blocked(SIGSEGV);
  });
  EXPECT_EQ(unblocked, 0);
  EXPECT_FALSE(faults_blocked) << "a crash handler of the program must still run";
  EXPECT_FALSE(is_blocked(SIGINT)) << "the caller's own mask is unchanged";
}

}  // namespace rapt::test
