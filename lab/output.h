// Output to stdout and to files. If output to stdout is lost, the command fails. An output file that cannot be written
// is reported before the work begins. Used by program.cpp and the commands.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <utility>

namespace rapt::lab {

// If stdin, stdout or stderr is closed, opens it in such a way that its use fails. Otherwise the next opened file would
// get the descriptor of the closed stream, and printed text would go into that file.
void occupy_standard_streams();

// The exit code of a command that ends with `code`. If output to stdout was lost, prints the reason to stderr, and
// replaces a `code` of 0 by 3. error: the errno of an earlier failed write; 0 means that none is known.
int code_of_output(int code, int error);

// Prints a sentence to stderr. If printing fails, the command continues: its exit code still shows the result.
template <class... Values>
void print_error(fmt::format_string<Values...> format, Values&&... values) {
  const std::string text = fmt::format(format, std::forward<Values>(values)...);
  std::fputs(text.c_str(), stderr);
}

// Refuses an output file that cannot be written: its folder is missing, or it is also an input file. `option` (for
// example "-o") and `what` (for example "the input") are words for the error sentence. An empty path means no output.
void check_output_file(const char* option, const std::string& path, const char* what = "",
                       const std::string& input = "");

}  // namespace rapt::lab
