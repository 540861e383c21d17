// Runs other programs without a shell. Finds them in $PATH, starts them with default signal handling, and keeps their
// output in files.
// Used by host_compiler.cpp and profile.cpp; assumes POSIX.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace rapt::lab {

// The value of an environment variable, or "" if it is not set.
std::string environment_value(const char* name);

// Splits a text at the separators. Empty words are dropped.
std::vector<std::string> split_words(std::string_view text, char separator);

// Quotes a word, so that a shell reads it unchanged.
std::string shell_word(const std::string& word);

// The file that a shell would start for `name`, or "". `name` is a path, or a name to find in $PATH.
std::string find_program(const std::string& name);

// How a program ended.
struct ProgramEnd {
  int status = 0;  // the status that waitpid() reports
  bool succeeded() const;
  std::string text() const;  // "it ended with exit code 2", "it ended by signal 9"
};

// Runs words[0], the path of a file, and waits for its end. Its stdin is empty. Its output goes to the new files `out`
// and `err`. If err is "", both streams go to `out`. Throws Error{environment} if the program cannot be started.
ProgramEnd run_program(const std::vector<std::string>& words, const std::string& out, const std::string& err = "");

}  // namespace rapt::lab
