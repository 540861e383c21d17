// Reader and writer of .npy files, versions 1, 2 and 3: a magic string, a Python dict as text, then one raw array.
// Called by the run command and tests. Files are untrusted and never evaluated: no pickles, no structured types.
// Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#pragma once

#include <string>

#include "check/tensor.h"
#include "lab/file.h"

namespace rapt::lab {

// Reads an array. <f4 <f2 <i4 <i8 |u1 |b1 become f32 f16 i32 i64 u8 u8. An array in Fortran order keeps its order as
// strides. numpy has no names for bf16, e4m3, e5m2 and sim8. If `raw` is one of these four dtypes, an array of raw
// bytes (u1, V1, u2, V2) of the same width is read as `raw`.
check::HostTensor read_npy(const ByteSource& source, DType raw = DType::none);

// Writes version 1 in C order, completely or not at all. bf16 and FP8 become V2 and V1, as ml_dtypes writes them.
void write_npy(const std::string& path, const check::HostTensor& tensor);

}  // namespace rapt::lab
