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

// Reads all tensors. Allowed dtypes are F32 F16 BF16 F8_E4M3 F8_E5M2 U8 BOOL I32 I64. U8 and BOOL become u8.
TensorFile read_safetensors(const ByteSource& source);

// Writes contiguous tensors in logical order. Tensors with the widest dtype come first, for alignment. The file is
// written completely or not at all.
void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

// The bytes of a tensor with any strides, as a contiguous tensor in logical order.
std::string contiguous_bytes(const check::HostTensor& tensor);

}  // namespace rapt::lab
