// Files as rapt reads and writes them: only regular ones, and new ones that are whole or absent.
// Used by src/jit, problem_value.cpp, check/cases.cpp and lab/file.cpp.
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

// openat() of `name` in `directory` (a descriptor, or AT_FDCWD); errno tells why it is not open.
FileHandle open_file(int directory, const std::string& name, int flags, unsigned mode = 0);

// Opens a regular file for reading, and tells its size. Never waits for a FIFO's writer. "" or what is wrong:
// "cannot be opened: ..." (errno tells, too), "is not a regular file". `flags` are added: O_NOFOLLOW.
std::string open_regular(int directory, const std::string& name, FileHandle& file, size_t& bytes, int flags = 0);

// The whole of a regular file of at most `most` bytes (files of /proc say 0 and hold more). "" or what is wrong.
std::string read_regular(int directory, const std::string& name, size_t most, std::string& bytes, int flags = 0);

// `bytes` bytes from `offset`. False at an early end or an error.
bool read_exactly(const FileHandle& file, size_t offset, size_t bytes, std::string& out);

// A name that nobody can have foreseen, in the folder of `target`: "target.<16 hex digits>.tmp".
std::string fresh_name(const std::string& target);

// A file that takes the place of `target` whole or not at all: written under a fresh name in the same folder, which
// must not exist before, synchronised, then renamed. Without commit() nothing is left of it.
// Functions return "" or what failed, without names of files (the same each time: it is told once).
class NewFile {
 public:
  // `directory` must stay open; `temporary` is a fresh_name().
  NewFile(int directory, std::string target, std::string temporary)
      : directory_(directory), target_(std::move(target)), temporary_(std::move(temporary)) {}
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  // A target that is there and not a regular file (a folder, a device, a link to one) is refused.
  std::string create(unsigned mode);
  std::string write(std::string_view bytes);
  std::string commit();

 private:
  int directory_;
  std::string target_, temporary_;
  FileHandle file_;
};

// All of it at once.
std::string replace_file(int directory, const std::string& target, std::string_view bytes, unsigned mode);

// strerror() of errno, safe between threads.
std::string system_error();

}  // namespace rapt
