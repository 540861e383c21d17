// A pack opened for reading: its index in memory, its images on disk until they are asked for.
// Used by store.cpp; writing is write_pack() of jit.h.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>

#include "base/files.h"
#include "jit/jit.h"

namespace rapt::jit {

class Pack {
 public:
  // Reads and checks the index. Throws Error{environment} naming the path and what is wrong. Unless `trust_any`, a pack
  // is refused that anyone but this user and root may have written.
  static std::shared_ptr<const Pack> open(const std::string& path, bool trust_any);

  // Whether it holds the image and that is sound; `why` says what is wrong where it is not.
  bool read(const std::string& signature, const std::string& arch, Image& image, std::string& why) const;

  const std::string& path() const { return path_; }
  const std::string& compiler() const { return compiler_; }

  struct Place {
    std::string arch;
    size_t offset = 0, bytes = 0;
  };
  bool holds(const std::string& arch) const { return archs_.contains(arch); }  // any kernel for it
  const std::map<std::string, Place>& places() const { return places_; }       // by signature

 private:
  std::string path_, compiler_;
  FileHandle file_;
  std::map<std::string, Place> places_;
  std::set<std::string> archs_;
};

}  // namespace rapt::jit
