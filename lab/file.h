// Input and output files of the lab: a source of bytes with a name and a size, and a file that is written completely or
// not at all. Used by safetensors.cpp, npy.cpp and the commands. The readers take any ByteSource, so tests and fuzzers
// can pass memory. Every failure is a rapt::Error that names the file.
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
  // Copies bytes [offset, offset + count) to `to`. Throws if the range is outside the source.
  void read(int64_t offset, int64_t count, void* to) const;

 private:
  virtual void copy(int64_t offset, int64_t count, void* to) const = 0;
  std::string name_;
  int64_t size_;
};

// A regular file, read with pread. If the file shrinks while it is read, read() throws.
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

// Reads a regular text file of at most 64 MiB.
std::string read_text_file(const std::string& path);

// Bytes that the caller keeps alive.
class MemorySource final : public ByteSource {
 public:
  MemorySource(std::string name, std::string_view bytes)
      : ByteSource(std::move(name), static_cast<int64_t>(bytes.size())), bytes_(bytes) {}

 private:
  void copy(int64_t offset, int64_t count, void* to) const override;
  std::string_view bytes_;
};

// Writes a temporary file in the folder of `path` (NewFile of files.h). commit() renames this file to `path`. Without
// commit, or after a signal (see below), no file is left. Only one AtomicFile can exist at a time.
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

// After this call SIGINT, SIGTERM and SIGHUP remove the unfinished AtomicFile, then end the process as usual.
void remove_unfinished_file_on_signals();

// Creates the folder and its parents.
void make_directories(const std::string& path);

// A name from a file in a form that is safe to print: in quotes, at most 60 characters, control characters replaced by
// '?'.
std::string in_quotes(std::string_view name);

// The product of the sizes times `element_bytes`, or -1 if the product does not fit in 63 bits. A size of 0 counts as
// 1, so that strides fit in 63 bits, too. Sizes must not be negative.
int64_t bytes_of_shape(const std::vector<int64_t>& shape, int64_t element_bytes);

}  // namespace rapt::lab
