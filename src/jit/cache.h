// The cache directory: one file for each kernel and compiler, shared by all processes of a user.
// Used by store.cpp. A failure is a returned reason, not an exception: a store works without a cache.
#pragma once

#include <optional>
#include <string>

#include "base/files.h"
#include "jit/jit.h"

namespace rapt::jit {

class Cache {
 public:
  // Opens the directory. Creates it, and its parent, if they are missing, but no other folder. Refuses a directory that
  // others can write to, because its files are code that this process runs.
  explicit Cache(const std::string& directory);

  // Returns why the constructor would not open the directory, or "". Creates nothing: of a missing directory it checks
  // only that it could be created.
  static std::string why_unusable(const std::string& directory);

  bool usable() const { return directory_.is_open(); }
  const std::string& note() const { return note_; }  // why the cache is not usable

  enum class Found { hit, miss, rejected };
  // Looks up a kernel. `why` gets the fault of a rejected entry.
  Found read(const std::string& signature, const std::string& arch, const std::string& compiler, Image& image,
             std::string& why) const;

  // The exclusive right to compile one kernel, among all processes. The system releases the lock when the owning
  // process ends, also after a crash.
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
  // Waits for the lock. Returns nothing, with a reason, if files cannot be locked or the owner seems to hang.
  std::optional<KeyLock> lock(const std::string& signature, const std::string& compiler, std::string& why) const;

  // Stores or replaces the image's entry. Its KeyLock must be held. Returns "" or the failure.
  std::string write(const Image& image, const KeyLock& lock) const;

 private:
  std::string path_, note_;
  FileHandle directory_;
};

}  // namespace rapt::jit
