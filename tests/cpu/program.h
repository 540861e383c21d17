// Runs shell commands and returns their output. Used by the tests of the command line.
#pragma once

#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace rapt::test {

struct Outcome {
  int code = -1;  // the exit code; -1 if a signal ended the command
  std::string out, err;
};

inline std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Runs a command in a folder. Returns the output that the command does not redirect.
inline Outcome run_in(const std::filesystem::path& folder, const std::string& command) {
  const std::filesystem::path out = folder / "stdout", err = folder / "stderr";
  for (const std::filesystem::path& file : {out, err}) std::filesystem::remove(file);
  const int status = std::system(
      ("cd '" + folder.string() + "' && { " + command + " ; } >'" + out.string() + "' 2>'" + err.string() + "'")
          .c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, text_of(out), text_of(err)};
}

}  // namespace rapt::test
