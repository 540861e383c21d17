// Output to stdout and to files: lost output is a failure. A file that cannot be written is reported before the work
// begins. Used by program.cpp and the commands.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <utility>

namespace rapt::lab {

// Opens stdin, stdout and stderr if they are closed, so that using them fails. Otherwise the next opened file would get
// their number, and printed text would go into that file.
void occupy_standard_streams();

// The exit code of a command that ends with `code`. It is 3, with the reason on stderr, if output to stdout was lost; a
// `code` other than 0 stays. error: the errno of an earlier failed write, 0: none known.
int code_of_output(int code, int error);

// Prints a sentence to stderr. If that fails, the command continues; its exit code shows the result.
template <class... Values>
void print_error(fmt::format_string<Values...> format, Values&&... values) {
  const std::string text = fmt::format(format, std::forward<Values>(values)...);
  std::fputs(text.c_str(), stderr);
}

// Refuses an output file that cannot be written: its folder is missing, or it is also an input file. option: "-o";
// what: "the input". An empty path means no output.
void check_output_file(const char* option, const std::string& path, const char* what = "",
                       const std::string& input = "");

}  // namespace rapt::lab
