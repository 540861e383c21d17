// Files of the lab: sources that read with pread or from memory, and a file that is written completely or not at all.
// Called by the readers, writers and commands. Requires POSIX.
#include "file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>

#include "base/error.h"

namespace rapt::lab {
namespace {

// The file that the signal handler removes. It is changed only while ready == 0, when no handler reads it.
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

// Throws if there was a failure. `failure`: the sentence of NewFile; "" means no failure.
void require(const std::string& failure, const std::string& path) {
  if (!failure.empty()) throw Error(ErrorCode::environment, concat(path, ": ", failure));
}

}  // namespace

void ByteSource::read(int64_t offset, int64_t count, void* to) const {
  if (offset < 0 || count < 0 || offset > size_ || count > size_ - offset)
    invalid(name_, ": bytes ", offset, " to ", offset, " + ", count, " are outside the file of ", size_, " bytes");
  if (count > 0) copy(offset, count, to);
}

FileSource::FileSource(const std::string& path) : FileSource(path, open(path)) {}
FileSource::FileSource(const std::string& path, Opened opened)
    : ByteSource(path, static_cast<int64_t>(opened.bytes)), file_(std::move(opened.file)) {}

FileSource::Opened FileSource::open(const std::string& path) {
  Opened opened;
  if (const std::string wrong = open_regular(AT_FDCWD, path, opened.file, opened.bytes); !wrong.empty())
    invalid(path, ": ", wrong);
  return opened;
}

void FileSource::copy(int64_t offset, int64_t count, void* to) const {
  char* next = static_cast<char*>(to);
  while (count > 0) {
    const ssize_t got = pread(file_.fd(), next, static_cast<size_t>(count), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) cannot("be read", name(), errno);
    if (got == 0) invalid(name(), ": shrank below its ", size(), " bytes while it was read");
    next += got, offset += got, count -= got;
  }
}

void MemorySource::copy(int64_t offset, int64_t count, void* to) const {
  std::memcpy(to, bytes_.data() + offset, static_cast<size_t>(count));
}

std::string read_text_file(const std::string& path) {
  constexpr size_t most = size_t{64} << 20;
  std::string text;
  if (const std::string wrong = read_regular(AT_FDCWD, path, most, text); !wrong.empty()) invalid(path, ": ", wrong);
  return text;
}

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {
  const std::string part = temporary_name(path_);
  announce_unfinished(part);
  file_ = std::make_unique<NewFile>(AT_FDCWD, path_, part);
  require(file_->create(0666), path_);
}

AtomicFile::~AtomicFile() {
  file_.reset();
  announce_unfinished("");
}

void AtomicFile::write(const void* bytes, size_t count) {
  require(file_->write({static_cast<const char*>(bytes), count}), path_);
}

void AtomicFile::commit() { require(file_->commit(), path_); }

void remove_unfinished_file_on_signals() {
  for (const int signal_number : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal_number, remove_unfinished_and_die);
}

void make_directories(const std::string& path) {
  std::error_code failure;
  std::filesystem::create_directories(path, failure);
  if (failure) cannot("be created", path, failure.value());
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
