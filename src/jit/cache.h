// The cache directory: one file for each compiled kernel and compiler, shared by all processes of a user.
// Used by store.cpp. Every failure is a value with its reason: a store works without a cache.
#pragma once

#include <optional>
#include <string>

#include "base/files.h"
#include "jit/jit.h"

namespace rapt::jit {

class Cache {
 public:
  // Opens the directory, making it and at most its parent. One that others could write to is refused: its files are
  // code that runs here.
  explicit Cache(const std::string& directory);

  // Why the constructor would not open it, or ""; makes nothing: a directory that is not there can be made or is told.
  static std::string why_unusable(const std::string& directory);

  bool usable() const { return directory_.is_open(); }
  const std::string& note() const { return note_; }  // why it is not usable

  enum class Found { hit, miss, rejected };
  // Looks the kernel up; `why` says what is wrong with a rejected entry.
  Found read(const std::string& signature, const std::string& arch, const std::string& compiler, Image& image,
             std::string& why) const;

  // The right to compile one kernel, among all processes. It ends with its owner, however that ends.
  class KeyLock {
   public:
    KeyLock(KeyLock&& other) noexcept = default;
    KeyLock& operator=(KeyLock&&) = delete;
    ~KeyLock();

   private:
    friend class Cache;
    KeyLock(int directory, std::string name, FileHandle file)
        : directory_(directory), name_(std::move(name)), file_(std::move(file)) {}
    int directory_;
    std::string name_;
    FileHandle file_;
  };
  // Waits for it. Nothing with a reason where there is no locking, or where the owner seems to hang.
  std::optional<KeyLock> lock(const std::string& signature, const std::string& compiler, std::string& why) const;

  // Stores or replaces the image's entry; its KeyLock must be held. "" or what failed.
  std::string write(const Image& image, const KeyLock& lock) const;

 private:
  std::string path_, note_;
  FileHandle directory_;
};

}  // namespace rapt::jit
