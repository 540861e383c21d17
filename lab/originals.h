// What a file of FP8 codes was quantised from, so that the loss of quantising can be told beside the kernel's error.
// quantize records it, run looks for it.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "lab/load.h"

namespace rapt::lab {

// Puts into the metadata of `output` where the q, k and v of `input` lie and what their bytes sum to. `before`: what
// `input` says itself, where it was quantised in part from an earlier file: that one stays the original. Records
// nothing where `input` holds codes and does not say of what.
void record_original(const std::string& input, const TensorFile& before, const std::string& output,
                     std::map<std::string, std::string>& metadata);

struct Originals {
  std::string path;  // "" = not known, and note says why
  std::string note;
  LoadedProblem loaded;  // the same problem on the tensors as they were
};

// Nothing where neither q, k nor v is quantised. path: what --original names, else what the file says is looked for
// beside it. Throws Error where --original names a file that is not the one.
std::optional<Originals> find_originals(const std::string& input, const LoadedProblem& quantised,
                                        const std::string& path);

}  // namespace rapt::lab
