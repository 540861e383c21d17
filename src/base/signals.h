// Blocks signals in one thread. Used where another library replaces the program's signal handlers (jit/nvrtc.cpp), and
// where a thread starts that must not receive the program's signals (cpu/threads.cpp, threads of lab).
#pragma once

#include <pthread.h>
#include <signal.h>

#include <initializer_list>

namespace rapt {

// The signals that ask a program to end: Ctrl-C, kill, a closed terminal.
inline sigset_t end_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, number);
  return set;
}

// All signals except SIGPROF, which profilers use, and the signals of a thread's own faults, such as SIGSEGV. If a
// fault were blocked, it would end the process before the program's own handler could report it.
inline sigset_t signals_for_other_threads() {
  sigset_t set;
  sigfillset(&set);
  for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT, SIGPROF}) sigdelset(&set, number);
  return set;
}

// Blocks the signals in the calling thread and restores its mask at the end. A signal that arrives meanwhile waits, or
// another thread receives it. A thread that is started meanwhile inherits the mask and keeps it.
class SignalBlock {
 public:
  explicit SignalBlock(const sigset_t& signals) { pthread_sigmask(SIG_BLOCK, &signals, &before_); }
  ~SignalBlock() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalBlock(const SignalBlock&) = delete;
  SignalBlock& operator=(const SignalBlock&) = delete;

 private:
  sigset_t before_;
};

}  // namespace rapt
