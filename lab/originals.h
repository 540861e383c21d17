// The original file: the file from which FP8 codes were quantised. The command quantize records it, and run looks for
// it. If run finds it, run reports the quantisation error in addition to the kernel's error.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "lab/load.h"

namespace rapt::lab {

// Writes the path of `input` and a checksum of the q, k and v of `input` into `metadata`, the metadata of `output`.
// `before`: the tensors and metadata of `input`. If `input` itself names an original (some of its tensors were
// quantised earlier), that one stays the original. If `input` holds codes and names no original, nothing is recorded.
void record_original(const std::string& input, const TensorFile& before, const std::string& output,
                     std::map<std::string, std::string>& metadata);

struct Originals {
  std::string path;  // "" if it is not known; `note` has the reason
  std::string note;
  LoadedProblem loaded;  // the same problem with the original tensors
};

// Returns nothing if none of q, k and v is quantised. path: the file of --original. If it is "", uses the file whose
// path (relative to the folder of `input`) is recorded. Throws Error if --original names a wrong file.
std::optional<Originals> find_originals(const std::string& input, const LoadedProblem& quantised,
                                        const std::string& path);

}  // namespace rapt::lab
