// This machine's C++ compiler, run without a shell on texts in a folder of their own.
// Used by emulate.cpp, its folders by profile.cpp, too; assumes POSIX.
#pragma once

#include <csignal>
#include <string>
#include <string_view>
#include <vector>

namespace rapt::lab {

// $CXX (words with blanks between), else c++, g++ or clang++ of $PATH.
struct HostCompiler {
  std::vector<std::string> words;  // the first is the path of its file
};
// Throws Error{environment} where there is none.
HostCompiler find_host_compiler();

// A new folder of this user's alone, removed with all that is in it.
class FreshFolder {
 public:
  // name: its first part. It stands in the folder for temporary files.
  explicit FreshFolder(const char* name = "rapt-emulation");
  ~FreshFolder();
  FreshFolder(const FreshFolder&) = delete;
  FreshFolder& operator=(const FreshFolder&) = delete;
  const std::string& path() const { return path_; }
  // name may have folders: "device/tile.cuh".
  void write(const std::string& name, std::string_view text) const;

 private:
  std::string path_;
};

// Signals that end the process wait as long as this lives, for the threads that are made meanwhile, too: what must be
// removed is removed first. Programs that are started do not inherit it.
class SignalsWait {
 public:
  SignalsWait();
  ~SignalsWait();
  SignalsWait(const SignalsWait&) = delete;
  SignalsWait& operator=(const SignalsWait&) = delete;
  static bool one_waits();  // so that long work may stop

 private:
  sigset_t before_{};
};

// Runs the compiler with more words in the folder. "" or the first lines of what it said, without the folder's name.
// `name` is that of a file for its messages; each run needs one of its own.
std::string run_compiler(const HostCompiler& compiler, const std::vector<std::string>& words, const FreshFolder& folder,
                         const std::string& name);

}  // namespace rapt::lab
