// Rules about single tensors and pairs of tensors: shape, dtype, device, memory. Each throws Error with argument, value
// and rule. Called by arguments.cpp, merge.cpp, quantize_rules.cpp and products.cpp before anything runs. Never reads
// contents.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "problem/dtypes.h"
#include "problem/problem.h"
#include "rapt/rapt.h"

namespace rapt {

constexpr int max_rank = 4;

inline DType dtype_of(const rapt_tensor& tensor) { return static_cast<DType>(tensor.dtype); }
// Strides of a tensor in elements. A tensor without strides is contiguous.
std::array<int64_t, max_rank> strides_of(const rapt_tensor& tensor);
Geometry geometry_of(const rapt_tensor& tensor);
int64_t element_count(const rapt_tensor& tensor);
std::string shape_text(const rapt_tensor& tensor);  // "[2, 8, 512, 64]"

// Checks rank, shape pointer, sizes, dtype code, data pointer and its alignment.
void check_tensor(const char* name, const rapt_tensor& tensor);
void require_dtype(const char* name, const rapt_tensor& tensor, Dtypes allowed);
void require_rank(const char* name, const rapt_tensor& tensor, int rank, const char* meaning);
void require_shape(const char* name, const rapt_tensor& tensor, std::initializer_list<int64_t> shape,
                   const char* meaning);
// The sizes of the tensor that a descale belongs to. total: number of packed rows, -1 if dense. seqlen: length of the
// longest sequence.
struct ScaledShape {
  int64_t batch, heads, seqlen, total, dim;
};
void require_scale_shape(const char* name, const rapt_tensor& tensor, ScaleKind kind, const ScaledShape& of);
void require_same_device(const char* name, const rapt_tensor& tensor, const rapt_tensor& first, const char* first_name);

// check_output_layout: an output must not overlap itself. check_disjoint: two tensors must not share a byte, unless
// both are only read.
void check_output_layout(const char* name, const rapt_tensor& tensor);
void check_disjoint(const char* name_a, const rapt_tensor& a, const char* name_b, const rapt_tensor& b);
// Runs check_disjoint for one tensor and several others.
class Bytes {
 public:
  Bytes(const char* name, const rapt_tensor& tensor);
  void check_disjoint(const char* other_name, const rapt_tensor& other) const;

 private:
  __extension__ typedef __int128 Int128;  // byte distances of 64-bit strides
  const char* name_;
  const rapt_tensor& tensor_;
  Int128 begin_, end_;  // the bytes of the tensor; equal if it has none
};

// Checks a struct to which later versions can add fields. struct_size must cover the fields that this build knows, and
// all bytes that it does not know must be 0.
void check_struct_size(const char* name, size_t struct_size, const void* data, size_t known);

}  // namespace rapt
