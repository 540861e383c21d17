// The cache directory on disk: entries, locks, and who may write there; see cache.h.
#include "jit/cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <thread>
#include <utility>

#include "error.h"
#include "jit/image_file.h"

namespace rapt::jit {
namespace {

constexpr auto longest_wait = std::chrono::seconds(120);  // no kernel takes a hundredth of it

std::string entry_name(const std::string& signature, const std::string& compiler) {
  return signature + "-" + compiler + ".image";
}

// flock() with a deadline, so that a stopped owner cannot stop everybody.
bool lock_file(const FileHandle& file, std::string& why) {
  const auto deadline = std::chrono::steady_clock::now() + longest_wait;
  for (auto pause = std::chrono::milliseconds(1);; pause = std::min(2 * pause, std::chrono::milliseconds(16))) {
    if (flock(file.fd(), LOCK_EX | LOCK_NB) == 0) return true;
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) {
      why = concat("a file cannot be locked: ", system_error());
      return false;
    }
    if (std::chrono::steady_clock::now() > deadline) {
      why = "another process has been compiling the same kernel for two minutes";
      return false;
    }
    std::this_thread::sleep_for(pause);
  }
}

// "" where only this user can write to the directory.
std::string why_refused(const FileHandle& directory) {
  struct stat status {};
  if (fstat(directory.fd(), &status) != 0) return system_error();
  if (status.st_uid != geteuid())
    return concat("it belongs to user ", status.st_uid, " and this process is user ", geteuid());
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) == 0) return "";
  char mode[8];
  std::snprintf(mode, sizeof mode, "%03o", static_cast<unsigned>(status.st_mode) & 0777u);
  return concat("its group or others may write to it (mode ", mode, "), and what lies there is code that runs here");
}

}  // namespace

Cache::Cache(const std::string& directory) : path_(directory) {
  const size_t slash = directory.find_last_of('/');
  if (slash != std::string::npos && slash > 0) mkdir(directory.substr(0, slash).c_str(), 0700);
  mkdir(directory.c_str(), 0700);
  FileHandle opened = open_file(AT_FDCWD, directory, O_RDONLY | O_DIRECTORY);
  const std::string reason = opened.is_open() ? why_refused(opened) : system_error();
  if (reason.empty()) {
    directory_ = std::move(opened);
  } else {
    note_ = concat("cache directory '", directory, "' is not used: ", reason, " (RAPT_CACHE can name another)");
  }
}

Cache::Found Cache::read(const std::string& signature, const std::string& arch, const std::string& compiler,
                         Image& image, std::string& why) const {
  const std::string name = entry_name(signature, compiler);
  const FileHandle file = open_file(directory_.fd(), name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  if (!file.is_open() && errno == ENOENT) return Found::miss;
  std::string bytes;
  if (!file.is_open() || !read_all(file, bytes)) {
    why = "cannot be read";
  } else {
    why = decode_image(bytes, {signature, arch, compiler}, image);
  }
  if (why.empty()) return Found::hit;
  why = concat(path_, "/", name, " ", why);
  return Found::rejected;
}

Cache::KeyLock::~KeyLock() {
  // Removed while still locked. Whoever waits for this file finds it without a name and opens the next one.
  if (file_.is_open()) unlinkat(directory_, name_.c_str(), 0);
}

std::optional<Cache::KeyLock> Cache::lock(const std::string& signature, const std::string& compiler,
                                          std::string& why) const {
  const std::string name = entry_name(signature, compiler) + ".lock";
  while (true) {
    FileHandle file = open_file(directory_.fd(), name, O_RDWR | O_CREAT | O_NOFOLLOW, 0600);
    if (!file.is_open()) {
      why = concat("a file cannot be made: ", system_error());
      return std::nullopt;
    }
    if (!lock_file(file, why)) return std::nullopt;
    struct stat status {};
    if (fstat(file.fd(), &status) == 0 && status.st_nlink > 0) return KeyLock(directory_.fd(), name, std::move(file));
  }
}

std::string Cache::write(const Image& image, const KeyLock&) const {
  const std::string name = entry_name(image.signature, image.compiler);
  return replace_file(directory_.fd(), name, name + ".tmp", encode_image(image), 0600);
}

}  // namespace rapt::jit
