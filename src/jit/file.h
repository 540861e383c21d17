// Files as the store needs them: whole reads and writes, replacement by rename, interrupted calls taken up again.
// Used by cache.cpp and pack.cpp.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace rapt::jit {

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

// openat() of `name` in `directory` (a descriptor, or AT_FDCWD); errno tells why it is not open.
FileHandle open_file(int directory, const std::string& name, int flags, unsigned mode = 0);

// `bytes` bytes from `offset`. False at an early end or an error.
bool read_exactly(const FileHandle& file, size_t offset, size_t bytes, std::string& out);
bool read_all(const FileHandle& file, std::string& out);

// Puts `bytes` into the file `name` of `directory`, whole or not at all: written under `temporary` in the same folder,
// synchronised, renamed. "" or what failed, without names (the same each time: it is told once); then nothing is left.
std::string replace_file(int directory, const std::string& name, const std::string& temporary, std::string_view bytes,
                         unsigned mode);

// strerror() of errno, safe between threads.
std::string system_error();

}  // namespace rapt::jit
