// What a translation unit consists of: its text and the files that its #include lines reach.
// Used by signature() and compile(); the files are the caller's and the embedded ones, never the disk's.
#pragma once

#include <map>
#include <string>

#include "jit/jit.h"

namespace rapt::jit {

// Texts as NVRTC gets them: each #include line names its file by the full name ("shared/dtype.h"), since NVRTC looks
// names up as they are written and knows nothing of the including file's folder.
struct Sources {
  std::string unit;
  std::map<std::string, std::string> headers;  // exactly the reachable files
};

// Throws Error{invalid_argument} naming an include that is neither embedded nor the caller's.
Sources collect_sources(const Request& request);

// "prim/../shared/x.h" -> "shared/x.h"; "" where it would leave the root.
std::string normalised(const std::string& path);

}  // namespace rapt::jit
