// Runs this machine's C++ compiler without a shell, on files in a temporary folder.
// Used by emulate.cpp; its folders also by profile.cpp. Requires POSIX.
#pragma once

#include <csignal>
#include <string>
#include <string_view>
#include <vector>

namespace rapt::lab {

// The compiler to run: $CXX (words separated by spaces), otherwise c++, g++ or clang++ in $PATH.
struct HostCompiler {
  std::vector<std::string> words;  // the first is the path of the compiler
};
// Throws Error{environment} if there is no compiler.
HostCompiler find_host_compiler();

// A new folder that only this user can access. The destructor removes it and its contents.
class TemporaryFolder {
 public:
  // Makes the folder in the system's folder for temporary files. name: the beginning of the new folder's name.
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

// While this object lives, signals that end the process are held back, because files must be removed first. This is
// also true for threads that are created in this time. Child programs do not inherit it.
class DeferredSignals {
 public:
  DeferredSignals();
  ~DeferredSignals();
  DeferredSignals(const DeferredSignals&) = delete;
  DeferredSignals& operator=(const DeferredSignals&) = delete;
  static bool one_is_pending();  // true if a signal is held back; long work should then stop

 private:
  sigset_t before_{};
};

// Runs the compiler in the folder, with `words` added to its command line. Returns "" if it succeeds, otherwise the
// first lines of its messages, without the folder's name. `name` is the file for the messages; each run needs another
// name.
std::string run_compiler(const HostCompiler& compiler, const std::vector<std::string>& words,
                         const TemporaryFolder& folder, const std::string& name);

}  // namespace rapt::lab
