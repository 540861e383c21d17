// The file from which FP8 codes were quantised. With it, run reports the quantisation error beside the kernel's error.
// quantize records it, run looks for it.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "lab/load.h"

namespace rapt::lab {

// Writes into the metadata of `output` the path of `input` and a checksum of its q, k and v. `before`: the metadata of
// `input`; if an earlier file was quantised in part, that earlier file stays the original. Records nothing if `input`
// holds codes and names no original.
void record_original(const std::string& input, const TensorFile& before, const std::string& output,
                     std::map<std::string, std::string>& metadata);

struct Originals {
  std::string path;  // "": not known; note has the reason
  std::string note;
  LoadedProblem loaded;  // the same problem with the original tensors
};

// Returns nothing if none of q, k and v is quantised. path: the file of --original; without it, the recorded file is
// searched beside the input. Throws Error if --original names a wrong file.
std::optional<Originals> find_originals(const std::string& input, const LoadedProblem& quantised,
                                        const std::string& path);

}  // namespace rapt::lab
