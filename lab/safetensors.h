// Reader and writer of .safetensors files: an 8-byte little-endian header length, a JSON header, then the raw tensors.
// Called by the run command and tests. Files are untrusted: all rules of the format are checked before memory is taken.
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

// Reads all tensors. F32 F16 BF16 F8_E4M3 F8_E5M2 U8 BOOL (both as u8) I32 I64; any other dtype is an error.
TensorFile read_safetensors(const ByteSource& source);

// Writes the tensors contiguous in logical order, the widest dtype first for alignment; completely or not at all.
void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

// The elements in logical order, last dimension fastest, for any strides.
std::string contiguous_bytes(const check::HostTensor& tensor);

}  // namespace rapt::lab
