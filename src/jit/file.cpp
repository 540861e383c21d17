// Whole reads and writes of files; see file.h.
#include "jit/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

#include "error.h"

namespace rapt::jit {
namespace {

// Repeats a call that a signal interrupted.
template <class Call>
auto uninterrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

bool write_all(const FileHandle& file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = uninterrupted([&] { return write(file.fd(), bytes.data(), bytes.size()); });
    if (written < 0) return false;
    if (written == 0) {
      errno = ENOSPC;
      return false;
    }
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

}  // namespace

FileHandle::~FileHandle() {
  if (fd_ >= 0) close(fd_);
}

FileHandle& FileHandle::operator=(FileHandle&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

FileHandle open_file(int directory, const std::string& name, int flags, unsigned mode) {
  return FileHandle(uninterrupted([&] { return openat(directory, name.c_str(), flags | O_CLOEXEC, mode); }));
}

bool read_exactly(const FileHandle& file, size_t offset, size_t bytes, std::string& out) {
  out.resize(bytes);
  for (size_t done = 0; done < bytes;) {
    const ssize_t got = uninterrupted(
        [&] { return pread(file.fd(), out.data() + done, bytes - done, static_cast<off_t>(offset + done)); });
    if (got <= 0) return false;
    done += static_cast<size_t>(got);
  }
  return true;
}

bool read_all(const FileHandle& file, std::string& out) {
  struct stat status {};
  return fstat(file.fd(), &status) == 0 && S_ISREG(status.st_mode) &&
         read_exactly(file, 0, static_cast<size_t>(status.st_size), out);
}

std::string replace_file(int directory, const std::string& name, const std::string& temporary, std::string_view bytes,
                         unsigned mode) {
  FileHandle file = open_file(directory, temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, mode);
  if (!file.is_open()) return concat("a file cannot be made: ", system_error());
  std::string failure;
  if (!write_all(file, bytes)) failure = concat("a file cannot be written: ", system_error());
  if (failure.empty() && uninterrupted([&] { return fsync(file.fd()); }) != 0)
    failure = concat("a file cannot be written: ", system_error());
  if (failure.empty() && renameat(directory, temporary.c_str(), directory, name.c_str()) != 0)
    failure = concat("a file cannot be replaced: ", system_error());
  if (!failure.empty()) unlinkat(directory, temporary.c_str(), 0);
  return failure;
}

std::string system_error() { return std::generic_category().message(errno); }

}  // namespace rapt::jit
