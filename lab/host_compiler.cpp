// Finds the C++ compiler, starts it, and reads its output.
#include "lab/host_compiler.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>

#include "base/error.h"
#include "base/files.h"

namespace rapt::lab {
namespace {

constexpr int ending_signals[] = {SIGINT, SIGTERM, SIGHUP};

std::vector<std::string> words_of(std::string_view text, char separator) {
  std::vector<std::string> words;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(separator, at), text.size());
    if (end > at) words.emplace_back(text.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

std::string environment_value(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool is_program(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) && access(path.c_str(), X_OK) == 0;
}

// The file that a shell would run for this name, or "".
std::string found_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return is_program(name) ? name : "";
  for (const std::string& folder : words_of(environment_value("PATH"), ':'))
    if (const std::string path = concat(folder, "/", name); is_program(path)) return path;
  return "";
}

[[noreturn]] void cannot(const std::string& what, const std::string& why) {
  throw Error(ErrorCode::environment, concat(what, ": ", why));
}

// A child's standard streams: empty input, and one file for all output.
class Streams {
 public:
  explicit Streams(const std::string& log) {
    posix_spawn_file_actions_init(&actions_);
    posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions_, STDOUT_FILENO, log.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0600);
    posix_spawn_file_actions_adddup2(&actions_, STDOUT_FILENO, STDERR_FILENO);
  }
  ~Streams() { posix_spawn_file_actions_destroy(&actions_); }
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;
  const posix_spawn_file_actions_t* get() const { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_;
};

// Gives a child the default signal settings, as a shell does.
class DefaultSignals {
 public:
  DefaultSignals() {
    posix_spawnattr_init(&attributes_);
    sigset_t none, all;
    sigemptyset(&none), sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes_, &none);
    posix_spawnattr_setsigdefault(&attributes_, &all);
    posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  }
  ~DefaultSignals() { posix_spawnattr_destroy(&attributes_); }
  DefaultSignals(const DefaultSignals&) = delete;
  DefaultSignals& operator=(const DefaultSignals&) = delete;
  const posix_spawnattr_t* get() const { return &attributes_; }

 private:
  posix_spawnattr_t attributes_;
};

// Returns the exit status of waitpid().
int run_to_end(const std::vector<std::string>& words, const std::string& log) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const Streams streams(log);
  const DefaultSignals signals;
  pid_t child = 0;
  if (const int failed = posix_spawn(&child, words[0].c_str(), streams.get(), signals.get(), arguments.data(), environ);
      failed != 0)
    cannot(words[0], concat("cannot be started: ", std::strerror(failed)));
  int status = 0;
  while (waitpid(child, &status, 0) < 0)
    if (errno != EINTR) cannot(words[0], system_error());
  return status;
}

std::string first_lines(const std::string& text, int count) {
  size_t end = 0;
  for (; count > 0 && end < text.size(); --count) end = std::min(text.find('\n', end), text.size() - 1) + 1;
  return text.substr(0, text.find_last_not_of('\n', end == 0 ? 0 : end - 1) + 1);
}

std::string without(std::string text, const std::string& part) {
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at)) text.erase(at, part.size());
  return text;
}

}  // namespace

HostCompiler find_host_compiler() {
  HostCompiler compiler{words_of(environment_value("CXX"), ' ')};
  if (!compiler.words.empty()) {
    const std::string path = found_program(compiler.words[0]);
    if (path.empty()) cannot(concat("CXX=", environment_value("CXX")), "no such C++ compiler");
    compiler.words[0] = path;
    return compiler;
  }
  for (const char* name : {"c++", "g++", "clang++"})
    if (const std::string path = found_program(name); !path.empty()) return {{path}};
  cannot("no C++ compiler was found", "neither c++ nor g++ nor clang++ is in PATH, and CXX is not set");
}

TemporaryFolder::TemporaryFolder() {
  std::error_code failure;
  const std::filesystem::path parent = std::filesystem::temp_directory_path(failure);
  if (failure) cannot("the folder for temporary files (TMPDIR)", failure.message());
  path_ = temporary_name(parent / "rapt-emulation");
  if (mkdir(path_.c_str(), 0700) != 0) cannot(path_, concat("cannot be created: ", system_error()));
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void TemporaryFolder::write(const std::string& name, std::string_view text) const {
  const std::filesystem::path path = std::filesystem::path(path_) / name;
  std::error_code failure;
  std::filesystem::create_directories(path.parent_path(), failure);
  if (failure) cannot(path.parent_path(), concat("cannot be created: ", failure.message()));
  if (const std::string wrong = replace_file(AT_FDCWD, path, text, 0600); !wrong.empty()) cannot(path, wrong);
}

bool DeferredSignals::one_is_pending() {
  sigset_t waiting;
  sigpending(&waiting);
  return std::any_of(std::begin(ending_signals), std::end(ending_signals),
                     [&](int number) { return sigismember(&waiting, number) == 1; });
}

DeferredSignals::DeferredSignals() {
  sigset_t ending;
  sigemptyset(&ending);
  for (const int number : ending_signals) sigaddset(&ending, number);
  pthread_sigmask(SIG_BLOCK, &ending, &before_);
}
DeferredSignals::~DeferredSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

std::string run_compiler(const HostCompiler& compiler, const std::vector<std::string>& words,
                         const TemporaryFolder& folder, const std::string& name) {
  std::vector<std::string> all = compiler.words;
  all.insert(all.end(), words.begin(), words.end());
  const std::string log = concat(folder.path(), "/", name, ".log");
  const int status = run_to_end(all, log);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return "";
  std::string said;
  constexpr size_t most = 16 << 20;
  if (const std::string wrong = read_regular(AT_FDCWD, log, most, said); !wrong.empty()) said = wrong;
  if (said.empty())
    return WIFSIGNALED(status) ? concat("it ended by signal ", WTERMSIG(status))
                               : concat("it ended with exit code ", WEXITSTATUS(status));
  constexpr int lines = 8;
  return first_lines(without(std::move(said), folder.path() + "/"), lines);
}

}  // namespace rapt::lab
