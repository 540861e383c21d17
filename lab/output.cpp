// Detects lost output and reports it. Called by program.cpp and the commands.
#include "lab/output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "lab/commands.h"

namespace rapt::lab {
namespace {

constexpr int unknown_error = -1;

// Returns 0, or the errno of a failed write. Some file systems report a failed write only when the file is closed.
int flush_error() {
  errno = 0;
  const bool failed_before = std::ferror(stdout) != 0;
  if (std::fflush(stdout) != 0) return errno != 0 ? errno : EIO;
  if (failed_before) return unknown_error;
  const int copy = dup(STDOUT_FILENO);
  return copy >= 0 && close(copy) != 0 && errno != EINTR ? errno : 0;
}

}  // namespace

void occupy_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) >= 0 || errno != EBADF) continue;
    // stdin is opened for writing, and the others are opened for reading. So reading and printing still fail. open()
    // returns the lowest free descriptor, which is the number of the closed stream.
    if (open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY) != stream) return;
  }
}

int code_of_output(int code, int error) {
  const int at_end = flush_error();
  if (error == 0) error = at_end;
  if (error == 0) return code;
  print_error("rapt: stdout: cannot be written: {}; the output is incomplete\n",
              error == unknown_error ? "a write failed" : std::strerror(error));
  return code == exit_success ? exit_environment : code;
}

void check_output_file(const char* option, const std::string& path, const char* what, const std::string& input) {
  if (path.empty()) return;
  std::error_code ignored;
  if (!input.empty() && std::filesystem::equivalent(path, input, ignored))
    invalid(option, " ", path, ": is ", what, " itself; name another file");
  if (std::filesystem::is_directory(path, ignored)) invalid(option, " ", path, ": is a folder; name a file");
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty() && !std::filesystem::is_directory(folder, ignored))
    throw Error(ErrorCode::environment,
                concat(option, " ", path, ": cannot be written: there is no folder ", folder.string()));
}

}  // namespace rapt::lab
