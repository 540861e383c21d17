// A pack opened for reading. Its index is in memory; its images stay on disk until they are needed. Used by store.cpp.
// write_pack() of jit.h writes packs.
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
  // Reads and checks the index. Throws Error{environment} with the path and the fault. If `trust_any` is false, refuses
  // a pack that anyone but this user and root could have written.
  static std::shared_ptr<const Pack> open(const std::string& path, bool trust_any);

  // Returns true if the pack has the image and the image is undamaged. If the image is damaged, `why` gets the fault.
  bool read(const std::string& signature, const std::string& arch, Image& image, std::string& why) const;

  const std::string& path() const { return path_; }
  const std::string& compiler() const { return compiler_; }

  struct Place {
    std::string arch;
    size_t offset = 0, bytes = 0;
  };
  bool holds(const std::string& arch) const { return archs_.contains(arch); }  // true if it has a kernel for `arch`
  const std::map<std::string, Place>& places() const { return places_; }       // key: signature

 private:
  std::string path_, compiler_;
  FileHandle file_;
  std::map<std::string, Place> places_;
  std::set<std::string> archs_;
};

}  // namespace rapt::jit
