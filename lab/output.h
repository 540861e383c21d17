// What the program prints and the files it is told to write: lost output is a failure, and what cannot be written is
// said before the work begins. Used by program.cpp and the commands.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <utility>

namespace rapt::lab {

// Opens those of stdin, stdout and stderr that are closed, so that they fail when used. Otherwise the next file that is
// opened takes their number, and what is printed goes into it.
void occupy_standard_streams();

// The exit code of a command that ends with `code`: 3, with the reason on stderr, where something that it printed to
// stdout is lost. A code other than 0 stays. error: the errno of a write that failed before, 0 = none known.
int code_of_output(int code, int error);

// A sentence on stderr. Where nobody can hear it the command goes on: its exit code tells.
template <class... Values>
void tell(fmt::format_string<Values...> format, Values&&... values) {
  const std::string text = fmt::format(format, std::forward<Values>(values)...);
  std::fputs(text.c_str(), stderr);
}

// Refuses an output file that can never be written: its folder is missing, or it is one of the files that are read.
// option: "-o"; what: "the input". An empty path is no output.
void check_output_file(const char* option, const std::string& path, const char* what = "",
                       const std::string& input = "");

}  // namespace rapt::lab
