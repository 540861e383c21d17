// Reader and writer of .safetensors files: an 8-byte little-endian header length, a JSON header, then the raw tensors.
// Called by the run command and tests; files are untrusted: every rule of the format is checked before memory is taken.
// Format: https://github.com/huggingface/safetensors#format
#pragma once

#include <map>
#include <string>
#include <vector>

#include "check/tensor.h"
#include "lab/file.h"

namespace rapt::lab {

struct NamedTensor {
  std::string name;
  check::HostTensor tensor;
};

struct TensorFile {
  std::map<std::string, check::HostTensor> tensors;
  std::map<std::string, std::string> metadata;
};

// Reads all of it. F32 F16 BF16 F8_E4M3 F8_E5M2 U8 BOOL (both as u8) I32 I64; anything else is an error that names it.
TensorFile read_safetensors(const ByteSource& source);

// Writes the tensors in logical order, contiguous, the widest dtype first so that each is aligned; whole or not at all.
void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

// Elements in logical order, last dimension fastest, whatever the strides.
std::string contiguous_bytes(const check::HostTensor& tensor);

}  // namespace rapt::lab
