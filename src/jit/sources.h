// The contents of a translation unit: its source and the files that its #include lines reach.
// Used by signature() and compile(). The included files are files of the caller or embedded files, never files on disk.
#pragma once

#include <map>
#include <string>

#include "jit/jit.h"

namespace rapt::jit {

// The sources for NVRTC. Each #include line has the file's full name ("shared/dtype.h"), because NVRTC looks names up
// as written and does not know the including file's folder.
struct Sources {
  std::string unit;
  std::map<std::string, std::string> headers;  // all files that the unit reaches, and no others
};

// Throws Error{invalid_argument} with the name of an include that is neither embedded nor the caller's.
Sources collect_sources(const Request& request);

// "device/../shared/x.h" -> "shared/x.h"; "" if the path leaves the root.
std::string normalised(const std::string& path);

}  // namespace rapt::jit
