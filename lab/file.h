// Files as the readers and writers of the lab see them: bytes with a name and a size, and a file that is whole or
// absent. Used by safetensors.cpp, npy.cpp and the commands; the readers take any ByteSource, so tests and fuzzers feed
// memory. Every failure is a rapt::Error that names the file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"

namespace rapt::lab {

class ByteSource {
 public:
  ByteSource(std::string name, int64_t size) : name_(std::move(name)), size_(size) {}
  virtual ~ByteSource() = default;
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;

  const std::string& name() const { return name_; }
  int64_t size() const { return size_; }
  // Copies bytes [offset, offset + count) to `to`. A range outside the source is an error, never a short read.
  void read(int64_t offset, int64_t count, void* to) const;

 private:
  virtual void copy(int64_t offset, int64_t count, void* to) const = 0;
  std::string name_;
  int64_t size_;
};

// A regular file, read with pread: a file that shrinks while it is read is an error, not a fault.
class FileSource final : public ByteSource {
 public:
  explicit FileSource(const std::string& path);

 private:
  struct Opened {
    FileHandle file;
    size_t bytes = 0;
  };
  static Opened open(const std::string& path);
  FileSource(const std::string& path, Opened opened);
  void copy(int64_t offset, int64_t count, void* to) const override;
  FileHandle file_;
};

// The whole of a regular file that people write, of at most 64 MiB.
std::string read_text_file(const std::string& path);

// Bytes that somebody else keeps alive.
class MemorySource final : public ByteSource {
 public:
  MemorySource(std::string name, std::string_view bytes)
      : ByteSource(std::move(name), static_cast<int64_t>(bytes.size())), bytes_(bytes) {}

 private:
  void copy(int64_t offset, int64_t count, void* to) const override;
  std::string_view bytes_;
};

// Writes under a fresh name beside `path` (NewFile of files.h); only commit() makes `path` appear, by rename. Destroyed
// without commit, or interrupted (see below), nothing is left. One at a time.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* bytes, size_t count);
  void write(std::string_view text) { write(text.data(), text.size()); }
  void commit();

 private:
  std::string path_;
  std::unique_ptr<NewFile> file_;
};

// From now on SIGINT, SIGTERM and SIGHUP remove the unfinished AtomicFile, then end the process as they always do.
void remove_unfinished_file_on_signals();

// Makes the folder and its parents.
void make_directories(const std::string& path);

// `name` from a file, fit for a message: in quotes, at most 60 characters, control characters as '?'.
std::string in_quotes(std::string_view name);

// Product of a shape times `element_bytes`, or -1 where it does not fit 63 bits, sizes of zero left out, so that
// strides fit as well. Sizes must not be negative.
int64_t bytes_of_shape(const std::vector<int64_t>& shape, int64_t element_bytes);

}  // namespace rapt::lab
