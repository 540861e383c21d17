// Files of the lab: pread and memory sources, and the file that is whole or absent.
// Called by the readers, writers and commands; assumes POSIX.
#include "file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>

#include "error.h"

namespace rapt::lab {
namespace {

// What the signal handler may remove. Written only while no handler may read it (ready == 0).
char unfinished_path[4096];
volatile std::sig_atomic_t unfinished_ready = 0;

void remove_unfinished_and_die(int signal_number) {
  if (unfinished_ready) unlink(unfinished_path);
  std::signal(signal_number, SIG_DFL);
  raise(signal_number);
}

void announce_unfinished(const std::string& path) {
  unfinished_ready = 0;
  if (path.empty() || path.size() >= sizeof unfinished_path) return;
  std::memcpy(unfinished_path, path.c_str(), path.size() + 1);
  unfinished_ready = 1;
}

[[noreturn]] void cannot(const char* verb, const std::string& path, int code) {
  throw Error(ErrorCode::environment, concat(path, ": cannot ", verb, ": ", std::strerror(code)));
}

int open_regular(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) invalid(path, ": cannot be opened: ", std::strerror(errno));
  if (!S_ISREG(info.st_mode)) invalid(path, ": is not a regular file");
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) invalid(path, ": cannot be opened: ", std::strerror(errno));
  return descriptor;
}

int64_t size_of(int descriptor) {
  struct stat info {};
  return fstat(descriptor, &info) == 0 ? static_cast<int64_t>(info.st_size) : 0;
}

}  // namespace

void ByteSource::read(int64_t offset, int64_t count, void* to) const {
  if (offset < 0 || count < 0 || offset > size_ || count > size_ - offset)
    invalid(name_, ": bytes ", offset, " to ", offset, " + ", count, " lie outside the file of ", size_, " bytes");
  if (count > 0) copy(offset, count, to);
}

FileSource::FileSource(const std::string& path) : FileSource(path, open_regular(path)) {}
FileSource::FileSource(const std::string& path, int descriptor)
    : ByteSource(path, size_of(descriptor)), descriptor_(descriptor) {}
FileSource::~FileSource() { close(descriptor_); }

void FileSource::copy(int64_t offset, int64_t count, void* to) const {
  char* next = static_cast<char*>(to);
  while (count > 0) {
    const ssize_t got = pread(descriptor_, next, static_cast<size_t>(count), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) cannot("be read", name(), errno);
    if (got == 0) invalid(name(), ": became shorter than its ", size(), " bytes while it was read");
    next += got, offset += got, count -= got;
  }
}

void MemorySource::copy(int64_t offset, int64_t count, void* to) const {
  std::memcpy(to, bytes_.data() + offset, static_cast<size_t>(count));
}

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)), part_(concat(path_, ".part-", getpid())) {
  announce_unfinished(part_);
  descriptor_ = open(part_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor_ < 0) cannot("be written", path_, errno);
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  close(descriptor_);
  unlink(part_.c_str());
  announce_unfinished("");
}

void AtomicFile::write(const void* bytes, size_t count) {
  const char* next = static_cast<const char*>(bytes);
  while (count > 0) {
    const ssize_t put = ::write(descriptor_, next, count);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) cannot("be written", path_, errno);
    next += put, count -= static_cast<size_t>(put);
  }
}

void AtomicFile::commit() {
  if (fsync(descriptor_) != 0) cannot("be written", path_, errno);
  if (rename(part_.c_str(), path_.c_str()) != 0) cannot("be put in place", path_, errno);
  announce_unfinished("");
  const int finished = descriptor_;
  descriptor_ = -1;
  if (close(finished) != 0) cannot("be closed", path_, errno);
}

void remove_unfinished_file_on_signals() {
  for (const int signal_number : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal_number, remove_unfinished_and_die);
}

void make_directories(const std::string& path) {
  std::error_code failure;
  std::filesystem::create_directories(path, failure);
  if (failure) cannot("be made", path, failure.value());
}

std::string in_quotes(std::string_view name) {
  constexpr size_t longest = 60;
  std::string text = "'";
  for (const char c : name.substr(0, longest))
    text += (c < 0x20 || c == 0x7f) && static_cast<signed char>(c) >= 0 ? '?' : c;
  return text + (name.size() > longest ? "...'" : "'");
}

int64_t bytes_of_shape(const std::vector<int64_t>& shape, int64_t element_bytes) {
  int64_t total = element_bytes;
  bool empty = false;
  for (const int64_t size : shape) {
    empty = empty || size == 0;
    if (size != 0 && __builtin_mul_overflow(total, size, &total)) return -1;
  }
  return empty ? 0 : total;
}

}  // namespace rapt::lab
