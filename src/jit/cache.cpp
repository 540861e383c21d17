// The cache directory on disk: entries, locks, and write permissions; see cache.h.
#include "jit/cache.h"

#include <dirent.h>
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

#include "base/error.h"
#include "jit/image_file.h"

namespace rapt::jit {
namespace {

constexpr auto lock_timeout = std::chrono::seconds(120);  // a hundred times longer than any kernel takes to compile

std::string entry_name(const std::string& signature, const std::string& compiler) {
  return signature + "-" + compiler + ".image";
}

// Calls flock() with a deadline, so that a stopped owner cannot block all other processes.
bool lock_file(const FileHandle& file, std::string& why) {
  const auto deadline = std::chrono::steady_clock::now() + lock_timeout;
  for (auto pause = std::chrono::milliseconds(1);; pause = std::min(2 * pause, std::chrono::milliseconds(16))) {
    if (flock(file.fd(), LOCK_EX | LOCK_NB) == 0) return true;
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) {
      why = concat("cannot lock a file: ", system_error());
      return false;
    }
    if (std::chrono::steady_clock::now() > deadline) {
      why = "another process has been compiling the same kernel for two minutes";
      return false;
    }
    std::this_thread::sleep_for(pause);
  }
}

// Returns "" if only this user can write to the directory.
std::string why_refused(const FileHandle& directory) {
  struct stat status {};
  if (fstat(directory.fd(), &status) != 0) return system_error();
  if (status.st_uid != geteuid())
    return concat("it belongs to user ", status.st_uid, " but this process is user ", geteuid());
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) == 0) return "";
  char mode[8];
  std::snprintf(mode, sizeof mode, "%03o", static_cast<unsigned>(status.st_mode) & 0777u);
  return concat("its group or others may write to it (mode ", mode, "), but rapt runs the code in it");
}

std::string not_used(const std::string& directory, const std::string& reason) {
  return concat("cache directory '", directory, "' is not used: ", reason, " (RAPT_CACHE can name another directory)");
}

// Returns the parent directory. Returns "" if the path has no slash, or if its parent is the root directory.
std::string parent_of(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

// Removes temporary files of writers that died. Only the owner of the entry's lock may call this.
void remove_leftovers(int directory, const std::string& entry) {
  const int listed = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const names = listed < 0 ? nullptr : fdopendir(listed);
  if (!names) {
    if (listed >= 0) close(listed);
    return;
  }
  while (const dirent* each = readdir(names)) {
    const std::string_view name = each->d_name;
    if (name.starts_with(entry + ".") && name.ends_with(".tmp")) unlinkat(directory, each->d_name, 0);
  }
  closedir(names);
}

}  // namespace

Cache::Cache(const std::string& directory) : path_(directory) {
  if (const std::string parent = parent_of(directory); !parent.empty()) mkdir(parent.c_str(), 0700);
  mkdir(directory.c_str(), 0700);
  FileHandle opened = open_file(AT_FDCWD, directory, O_RDONLY | O_DIRECTORY);
  const std::string reason = opened.is_open() ? why_refused(opened) : system_error();
  if (reason.empty()) {
    directory_ = std::move(opened);
  } else {
    note_ = not_used(directory, reason);
  }
}

std::string Cache::why_unusable(const std::string& directory) {
  const FileHandle opened = open_file(AT_FDCWD, directory, O_RDONLY | O_DIRECTORY);
  if (opened.is_open() || errno != ENOENT) {
    const std::string reason = opened.is_open() ? why_refused(opened) : system_error();
    return reason.empty() ? "" : not_used(directory, reason);
  }
  // rapt creates a missing directory and its missing parent, so the nearest existing folder must be writable.
  std::string existing_ancestor = parent_of(directory);
  if (!existing_ancestor.empty() && access(existing_ancestor.c_str(), F_OK) != 0)
    existing_ancestor = parent_of(existing_ancestor);
  if (existing_ancestor.empty()) existing_ancestor = directory.starts_with('/') ? "/" : ".";
  return access(existing_ancestor.c_str(), W_OK | X_OK) == 0 ? "" : not_used(directory, system_error());
}

Cache::Found Cache::read(const std::string& signature, const std::string& arch, const std::string& compiler,
                         Image& image, std::string& why) const {
  const std::string name = entry_name(signature, compiler);
  std::string bytes;
  errno = 0;
  why = read_regular(directory_.fd(), name, largest_image, bytes, O_NOFOLLOW);
  if (!why.empty() && errno == ENOENT) {
    why.clear();
    return Found::miss;
  }
  if (why.empty()) why = decode_image(bytes, {signature, arch, compiler}, image);
  if (why.empty()) return Found::hit;
  why = concat(path_, "/", name, " ", why);
  return Found::rejected;
}

Cache::KeyLock::~KeyLock() {
  // The lock file is removed while it is still locked. A process that waited for the lock sees that the file was
  // unlinked (st_nlink == 0), and creates a new file.
  if (file_.is_open()) unlinkat(directory_, name_.c_str(), 0);
}

std::optional<Cache::KeyLock> Cache::lock(const std::string& signature, const std::string& compiler,
                                          std::string& why) const {
  const std::string name = entry_name(signature, compiler) + ".lock";
  while (true) {
    FileHandle file = open_file(directory_.fd(), name, O_RDWR | O_CREAT | O_NOFOLLOW, 0600);
    if (!file.is_open()) {
      why = concat("cannot create a file: ", system_error());
      return std::nullopt;
    }
    if (!lock_file(file, why)) return std::nullopt;
    struct stat status {};
    if (fstat(file.fd(), &status) == 0 && status.st_nlink > 0) return KeyLock(directory_.fd(), name, std::move(file));
  }
}

std::string Cache::write(const Image& image, const KeyLock&) const {
  const std::string name = entry_name(image.signature, image.compiler);
  remove_leftovers(directory_.fd(), name);
  return replace_file(directory_.fd(), name, encode_image(image), 0600);
}

}  // namespace rapt::jit
