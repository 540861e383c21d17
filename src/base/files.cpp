// Reads and writes complete files; see files.h.
#include "base/files.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace rapt {
namespace {

// Repeats a call if a signal interrupted it.
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

// Reads to the end of the file, but stops after `most` + 1 bytes. Returns false and sets errno on failure.
bool read_to_end(const FileHandle& file, size_t most, std::string& out) {
  size_t done = 0;
  while (done <= most) {
    out.resize(done + std::min<size_t>(most + 1 - done, 64 * 1024));
    const ssize_t got = uninterrupted([&] { return read(file.fd(), out.data() + done, out.size() - done); });
    if (got < 0) return false;
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  out.resize(done);
  return true;
}

std::string why_others_may_write(const struct stat& status) {
  if (status.st_uid != geteuid() && status.st_uid != 0)
    return concat("belongs to user ", status.st_uid, ": its owner must be user ", geteuid(),
                  ", who runs this process, or root");
  const bool sticky = S_ISDIR(status.st_mode) && (status.st_mode & S_ISVTX) != 0;
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) == 0 || sticky) return "";
  char mode[8];
  std::snprintf(mode, sizeof mode, "%03o", static_cast<unsigned>(status.st_mode) & 0777u);
  return concat("may be written by its group or others (mode ", mode, ")");
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

std::string open_regular(int directory, const std::string& name, FileHandle& file, size_t& bytes, int flags) {
  file = open_file(directory, name, O_RDONLY | O_NONBLOCK | flags);
  struct stat status {};
  if (!file.is_open() || fstat(file.fd(), &status) != 0) {
    const int code = errno;
    std::string wrong = concat("cannot be opened: ", system_error());
    errno = code;
    return wrong;
  }
  if (!S_ISREG(status.st_mode)) return "is not a regular file";
  bytes = static_cast<size_t>(status.st_size);
  return "";
}

std::string read_regular(int directory, const std::string& name, size_t most, std::string& bytes, int flags) {
  FileHandle file;
  size_t size = 0;
  if (std::string wrong = open_regular(directory, name, file, size, flags); !wrong.empty()) return wrong;
  std::string too_large = concat("is larger than ", most, " bytes, the most that is read");
  if (size > most) return too_large;
  bytes.reserve(size);
  if (!read_to_end(file, most, bytes)) return concat("cannot be read: ", system_error());
  return bytes.size() > most ? too_large : "";
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

std::string temporary_name(const std::string& target) {
  uint64_t number = 0;
  // getrandom() can fail shortly after the machine starts. Then the time is used.
  if (getrandom(&number, sizeof number, GRND_NONBLOCK) != static_cast<ssize_t>(sizeof number))
    number = static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count()) << 20 ^
             static_cast<uint64_t>(getpid());
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(number));
  return concat(target, ".", digits, ".tmp");
}

NewFile::~NewFile() {
  if (file_.is_open()) unlinkat(directory_, temporary_.c_str(), 0);
}

std::string NewFile::create(unsigned mode) {
  struct stat status {};
  if (fstatat(directory_, target_.c_str(), &status, 0) == 0 && !S_ISREG(status.st_mode))
    return "the existing target is not a regular file and cannot be replaced";
  file_ = open_file(directory_, temporary_, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, mode);
  return file_.is_open() ? "" : concat("cannot create a file: ", system_error());
}

std::string NewFile::write(std::string_view bytes) {
  return write_all(file_, bytes) ? "" : concat("cannot write a file: ", system_error());
}

std::string NewFile::commit() {
  if (uninterrupted([&] { return fsync(file_.fd()); }) != 0) return concat("cannot write a file: ", system_error());
  if (renameat(directory_, temporary_.c_str(), directory_, target_.c_str()) != 0)
    return concat("cannot replace a file: ", system_error());
  file_ = FileHandle();
  return "";
}

std::string replace_file(int directory, const std::string& target, std::string_view bytes, unsigned mode) {
  NewFile file(directory, target, temporary_name(target));
  std::string failure = file.create(mode);
  if (failure.empty()) failure = file.write(bytes);
  return failure.empty() ? file.commit() : failure;
}

std::string why_others_may_write(const FileHandle& file, const std::string& path) {
  struct stat status {};
  std::error_code failure;
  const std::filesystem::path folder = std::filesystem::canonical(path, failure).parent_path();
  if (failure || fstat(file.fd(), &status) != 0) return "its owner cannot be determined";
  if (const std::string why = why_others_may_write(status); !why.empty()) return "it " + why;
  if (stat(folder.c_str(), &status) != 0) return "its folder's owner cannot be determined";
  const std::string why = why_others_may_write(status);
  return why.empty() ? "" : concat("its folder '", folder.string(), "' ", why);
}

std::string system_error() { return std::generic_category().message(errno); }

}  // namespace rapt
