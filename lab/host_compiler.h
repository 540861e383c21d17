// Runs this machine's C++ compiler without a shell, on files in a temporary folder.
// Used by emulate.cpp; its folders also by profile.cpp. Requires POSIX.
#pragma once

#include <csignal>
#include <string>
#include <string_view>
#include <vector>

namespace rapt::lab {

// $CXX (words separated by spaces), else c++, g++ or clang++ of $PATH.
struct HostCompiler {
  std::vector<std::string> words;  // the first is the path of the compiler
};
// Throws Error{environment} if there is no compiler.
HostCompiler find_host_compiler();

// A new folder that only this user can access. It is removed with its contents.
class TemporaryFolder {
 public:
  // name: how the folder's name begins. It is made in the folder for temporary files.
  explicit TemporaryFolder(const char* name = "rapt-emulation");
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }
  // name may contain folders: "device/tile.cuh".
  void write(const std::string& name, std::string_view text) const;

 private:
  std::string path_;
};

// While this object lives, signals that end the process are held back, also in threads created meanwhile: files must be
// removed first. Child programs do not inherit this.
class DeferredSignals {
 public:
  DeferredSignals();
  ~DeferredSignals();
  DeferredSignals(const DeferredSignals&) = delete;
  DeferredSignals& operator=(const DeferredSignals&) = delete;
  static bool one_is_pending();  // true if a signal waits, so long work can stop

 private:
  sigset_t before_{};
};

// Runs the compiler in the folder with additional words. Returns "" or the first lines of its output, without the
// folder's name. `name` is the file for its messages; each run needs its own.
std::string run_compiler(const HostCompiler& compiler, const std::vector<std::string>& words,
                         const TemporaryFolder& folder, const std::string& name);

}  // namespace rapt::lab
