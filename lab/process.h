// Other programs, run without a shell: found in $PATH, started with plain signals, what they print kept in files.
// Used by host_compiler.cpp and profile.cpp; assumes POSIX.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace rapt::lab {

// The value of an environment variable, "" where it is not set.
std::string environment_value(const char* name);

// The words between separators; empty ones are left out.
std::vector<std::string> split_words(std::string_view text, char separator);

// A word so that a shell reads it back as it was.
std::string shell_word(const std::string& word);

// The file that a shell would start for `name` (a path, or looked for in $PATH), or "".
std::string find_program(const std::string& name);

// How a program ended.
struct ProgramEnd {
  int status = 0;  // of waitpid()
  bool succeeded() const;
  std::string text() const;  // "it ended with exit code 2", "it ended by signal 9"
};

// Runs words[0], the path of a file, to its end. It reads nothing. What it prints goes to `out` and `err`, new files;
// "" as err: both go to `out`. Throws Error{environment} where it cannot be started.
ProgramEnd run_program(const std::vector<std::string>& words, const std::string& out, const std::string& err = "");

}  // namespace rapt::lab
