// File input and output: reads only regular files; writes a new file completely or not at all.
// Used by src/jit, src/runtime, cpu/quota.cpp, problem/value.cpp, check/cases.cpp and lab/.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace rapt {

class FileHandle {
 public:
  FileHandle() = default;
  explicit FileHandle(int fd) : fd_(fd) {}
  ~FileHandle();
  FileHandle(FileHandle&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  FileHandle& operator=(FileHandle&& other) noexcept;
  int fd() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// openat() of `name` in `directory` (a descriptor, or AT_FDCWD). On failure errno has the reason.
FileHandle open_file(int directory, const std::string& name, int flags, unsigned mode = 0);

// Opens a regular file for reading and returns its size. Never waits for the writer of a FIFO. Returns "" or the error:
// "cannot be opened: ..." (also in errno), "is not a regular file". `flags` are additional open flags, such as
// O_NOFOLLOW.
std::string open_regular(int directory, const std::string& name, FileHandle& file, size_t& bytes, int flags = 0);

// Reads a regular file of at most `most` bytes. Files of /proc report size 0 but hold more. Returns "" or the error.
std::string read_regular(int directory, const std::string& name, size_t most, std::string& bytes, int flags = 0);

// Reads `bytes` bytes from `offset`. Returns false at an early end or an error.
bool read_exactly(const FileHandle& file, size_t offset, size_t bytes, std::string& out);

// An unpredictable name in the folder of `target`: "target.<16 hex digits>.tmp".
std::string temporary_name(const std::string& target);

// Replaces `target` completely or not at all. It writes a new temporary file in the same folder, synchronises it, then
// renames it. Without commit() it leaves no file. Each function returns "" or describes the failure. The description
// contains no file names, so that warn_once() reports the same failure only once.
class NewFile {
 public:
  // `directory` must stay open. `temporary` is a temporary_name().
  NewFile(int directory, std::string target, std::string temporary)
      : directory_(directory), target_(std::move(target)), temporary_(std::move(temporary)) {}
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  // Fails if the target exists and is not a regular file (a folder, a device, a link to one).
  std::string create(unsigned mode);
  std::string write(std::string_view bytes);
  std::string commit();

 private:
  int directory_;
  std::string target_, temporary_;
  FileHandle file_;
};

// Creates, writes and commits in one call.
std::string replace_file(int directory, const std::string& target, std::string_view bytes, unsigned mode);

// Returns "" if only this user or root can have written the opened file `path`. This holds if the file and its folder
// (after symbolic links) belong to one of them, and group and others cannot write to them. A folder with the sticky bit
// (/tmp) can be writable by others, because they cannot replace the file. Otherwise returns the reason, for example
// "it belongs to user 7: ..." or "its folder '/x' may be written by ...".
std::string why_others_may_write(const FileHandle& file, const std::string& path);

// strerror() of errno, thread-safe.
std::string system_error();

}  // namespace rapt
