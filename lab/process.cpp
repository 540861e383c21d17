// Finds programs, starts them, waits for them.
#include "lab/process.h"

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

#include "base/error.h"
#include "base/files.h"

namespace rapt::lab {
namespace {

bool is_program(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) && access(path.c_str(), X_OK) == 0;
}

// A child's standard streams: an empty stdin, and files for its output.
class Streams {
 public:
  Streams(const std::string& out, const std::string& err) {
    posix_spawn_file_actions_init(&actions_);
    posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    add_file(STDOUT_FILENO, out);
    if (err.empty())
      posix_spawn_file_actions_adddup2(&actions_, STDOUT_FILENO, STDERR_FILENO);
    else
      add_file(STDERR_FILENO, err);
  }
  ~Streams() { posix_spawn_file_actions_destroy(&actions_); }
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;
  const posix_spawn_file_actions_t* get() const { return &actions_; }

 private:
  void add_file(int stream, const std::string& path) {
    posix_spawn_file_actions_addopen(&actions_, stream, path.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0600);
  }
  posix_spawn_file_actions_t actions_;
};

// Sets the signal handling that a shell gives to the programs it starts.
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

}  // namespace

std::string environment_value(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::vector<std::string> split_words(std::string_view text, char separator) {
  std::vector<std::string> words;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(separator, at), text.size());
    if (end > at) words.emplace_back(text.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

std::string shell_word(const std::string& word) {
  const bool plain = !word.empty() && word.find_first_not_of(
                                          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./,:=@+%") ==
                                          std::string::npos;
  if (plain) return word;
  std::string escaped;
  for (const char c : word) escaped += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return "'" + escaped + "'";
}

std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return is_program(name) ? name : "";
  for (const std::string& folder : split_words(environment_value("PATH"), ':'))
    if (const std::string path = concat(folder, "/", name); is_program(path)) return path;
  return "";
}

bool ProgramEnd::succeeded() const { return WIFEXITED(status) && WEXITSTATUS(status) == 0; }

std::string ProgramEnd::text() const {
  return WIFSIGNALED(status) ? concat("it ended by signal ", WTERMSIG(status))
                             : concat("it ended with exit code ", WEXITSTATUS(status));
}

ProgramEnd run_program(const std::vector<std::string>& words, const std::string& out, const std::string& err) {
  const auto cannot = [&](const std::string& why) { throw Error(ErrorCode::environment, concat(words[0], ": ", why)); };
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const Streams streams(out, err);
  const DefaultSignals signals;
  pid_t child = 0;
  if (const int failed = posix_spawn(&child, words[0].c_str(), streams.get(), signals.get(), arguments.data(), environ);
      failed != 0)
    cannot(concat("cannot be started: ", std::strerror(failed)));
  ProgramEnd end;
  while (waitpid(child, &end.status, 0) < 0)
    if (errno != EINTR) cannot(system_error());
  return end;
}

}  // namespace rapt::lab
