// Shared mappings, fork, and how a process ended.
#include "lab/isolated_call.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string_view>

#include "base/error.h"
#include "base/files.h"
#include "check/poison.h"

namespace rapt::lab {
namespace {

constexpr size_t guard_bytes = 4096, alignment = 64;
constexpr std::byte guard{0xff};

[[noreturn]] void cannot(const char* what) {
  throw Error(ErrorCode::environment, concat("emulation: ", what, ": ", system_error()));
}

// Runs in the child process. It ends when the parent ends, writes no core file, and has a CPU time limit.
void set_up_child(int errors, pid_t parent, unsigned seconds) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) std::signal(number, SIG_DFL);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  const bool limited = seconds > 0;
  const rlimit no_core{0, 0}, time{limited ? seconds : RLIM_INFINITY, limited ? seconds + 1 : RLIM_INFINITY};
  setrlimit(RLIMIT_CORE, &no_core);
  setrlimit(RLIMIT_CPU, &time);
  dup2(errors, STDERR_FILENO);
}

// Reads a pipe until its last writer closes it. Keeps only the beginning of a long text.
std::string read_pipe(int from) {
  constexpr size_t most = 4096;
  std::string text;
  char bytes[512];
  for (;;) {
    const ssize_t got = read(from, bytes, sizeof bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text.append(bytes, std::min(static_cast<size_t>(got), most - text.size()));
  }
  return text.substr(0, text.find_last_not_of('\n') + 1);
}

std::string ending(int status, const std::string& said, unsigned seconds) {
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return "";
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGXCPU)
    return concat("it did not finish within ", seconds, " s of CPU time");
  if (WIFSIGNALED(status) && (WTERMSIG(status) == SIGSEGV || WTERMSIG(status) == SIGBUS))
    return "it accessed memory at an invalid address";
  if (!said.empty()) return said;
  return WIFSIGNALED(status) ? concat("it ended by signal ", WTERMSIG(status))
                             : concat("it ended with exit code ", WEXITSTATUS(status));
}

bool are_guards(const std::byte* begin, const std::byte* end) {
  return std::all_of(begin, end, [](std::byte b) { return b == guard; });
}

}  // namespace

bool SharedCall::Placed::is_output() const {
  return std::string_view(name) == "out" || std::string_view(name) == "lse";
}

SharedCall::SharedCall(const Problem& problem, const check::Inputs& inputs, const check::Outputs& outputs) {
  call_.emplace(problem, inputs, outputs,
                [this](const char* name, const check::HostTensor& tensor) { return place(name, tensor); });
}

SharedCall::~SharedCall() {
  for (const Placed& placed : placed_) munmap(placed.memory, placed.memory_bytes);
}

check::Address SharedCall::place(const char* name, const check::HostTensor& tensor) {
  const check::Span span = check::reach(tensor.shape, tensor.strides);
  const auto width = static_cast<int64_t>(bytes_of(tensor.dtype));
  std::byte* const host = tensor.data() + span.first * width;
  const size_t bytes = static_cast<size_t>((span.last - span.first + 1) * width);
  const size_t begin = guard_bytes + reinterpret_cast<uintptr_t>(host) % alignment, all = begin + bytes + guard_bytes;
  void* const memory = mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) cannot("shared memory");
  placed_.push_back({name, host, begin, bytes, static_cast<std::byte*>(memory), all});
  std::fill_n(placed_.back().memory, all, guard);
  if (bytes > 0) std::memcpy(placed_.back().memory + begin, host, bytes);
  return {placed_.back().memory + begin - span.first * width, {RAPT_DEVICE_CPU, 0}};
}

void SharedCall::require_untouched() const {
  for (const Placed& p : placed_) {
    const std::byte *first = p.memory + p.begin, *end = first + p.bytes;
    if (!are_guards(p.memory, first) || !are_guards(end, p.memory + p.memory_bytes))
      throw Error(ErrorCode::internal, concat(p.name, ": the kernel wrote to memory around the tensor"));
    if (!p.is_output() && !std::equal(first, end, p.host))
      throw Error(ErrorCode::internal, concat(p.name, ": the kernel changed an input"));
  }
}

void SharedCall::copy_back() const {
  for (const Placed& p : placed_)
    if (p.is_output() && p.bytes > 0) std::memcpy(p.host, p.memory + p.begin, p.bytes);
}

std::string run_in_child(const std::function<void()>& work, unsigned seconds) {
  int ends[2];
  if (pipe(ends) != 0) cannot("a pipe");
  FileHandle from(ends[0]), to(ends[1]);
  const pid_t parent = getpid(), child = fork();
  if (child < 0) cannot("a process");
  if (child == 0) {
    set_up_child(to.fd(), parent, seconds);
    work();
    _exit(0);
  }
  to = FileHandle();
  const std::string said = read_pipe(from.fd());
  int status = 0;
  while (waitpid(child, &status, 0) < 0)
    if (errno != EINTR) cannot("a process");
  return ending(status, said, seconds);
}

}  // namespace rapt::lab
