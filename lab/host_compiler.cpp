// Finds the C++ compiler, starts it, and reads its output.
#include "lab/host_compiler.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <iterator>

#include "base/error.h"
#include "base/files.h"
#include "lab/process.h"

namespace rapt::lab {
namespace {

constexpr int ending_signals[] = {SIGINT, SIGTERM, SIGHUP};

[[noreturn]] void cannot(const std::string& what, const std::string& why) {
  throw Error(ErrorCode::environment, concat(what, ": ", why));
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
  HostCompiler compiler{split_words(environment_value("CXX"), ' ')};
  if (!compiler.words.empty()) {
    const std::string path = find_program(compiler.words[0]);
    if (path.empty()) cannot(concat("CXX=", environment_value("CXX")), "there is no such C++ compiler");
    compiler.words[0] = path;
    return compiler;
  }
  for (const char* name : {"c++", "g++", "clang++"})
    if (const std::string path = find_program(name); !path.empty()) return {{path}};
  cannot("no C++ compiler was found", "neither c++ nor g++ nor clang++ is in PATH, and CXX is not set");
}

TemporaryFolder::TemporaryFolder(const char* name) {
  std::error_code failure;
  const std::filesystem::path parent = std::filesystem::temp_directory_path(failure);
  if (failure) cannot("the folder for temporary files (TMPDIR)", failure.message());
  path_ = temporary_name(parent / name);
  if (mkdir(path_.c_str(), 0700) != 0) cannot(path_, concat("cannot be made: ", system_error()));
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
  const ProgramEnd end = run_program(all, log);
  if (end.succeeded()) return "";
  std::string said;
  constexpr size_t most = 16 << 20;
  if (const std::string wrong = read_regular(AT_FDCWD, log, most, said); !wrong.empty()) said = wrong;
  if (said.empty()) return end.text();
  constexpr int lines = 8;
  return first_lines(without(std::move(said), folder.path() + "/"), lines);
}

}  // namespace rapt::lab
