// A pack opened for reading: its index in memory, its images on disk until they are asked for.
// Used by store.cpp; writing is write_pack() of jit.h.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "jit/file.h"
#include "jit/jit.h"

namespace rapt::jit {

class Pack {
 public:
  // Reads and checks the index. Throws Error{invalid_argument} naming the path and what is wrong.
  static std::shared_ptr<const Pack> open(const std::string& path);

  // Whether it holds the image and that is sound; `why` says what is wrong where it is not.
  bool read(const std::string& signature, const std::string& arch, Image& image, std::string& why) const;

  const std::string& path() const { return path_; }
  const std::string& compiler() const { return compiler_; }

  struct Place {
    std::string arch;
    size_t offset = 0, bytes = 0;
  };
  const std::map<std::string, Place>& places() const { return places_; }  // by signature

 private:
  std::string path_, compiler_;
  FileHandle file_;
  std::map<std::string, Place> places_;
};

}  // namespace rapt::jit
