// TensorMapSpec: the description of a tensor in GPU memory, from which cuda/tensor_map.h makes a tensor map (TMA, sm_90
// and newer). The host code of kernels that load by TMA writes the description. The run time makes the map.
#pragma once

#include <array>
#include <cstdint>

namespace rapt {

enum class TensorElement : uint8_t { u8, f16, bf16, f32 };

// In shared memory the 16-byte pieces of a box's rows are permuted within spans of this many bytes.
enum class TensorSwizzle : uint8_t { none, bytes_32, bytes_64, bytes_128 };

inline constexpr int max_tensor_rank = 5;

// The innermost dimension, whose elements are adjacent, comes first. The part of a box outside the tensor reads as
// zero. A copy's innermost coordinate must be a multiple of 16 bytes: on an H200 other coordinates caused an illegal
// instruction.
struct TensorMapSpec {
  TensorElement element = TensorElement::f16;
  const void* base = nullptr;  // in GPU memory, a multiple of 16 bytes
  int rank = 1;
  std::array<uint64_t, max_tensor_rank> sizes{};  // elements, 1 to 2^32
  std::array<uint64_t, max_tensor_rank - 1>
      strides{};                                // in bytes, for dimensions 1 to rank - 1: multiples of 16, below 2^40
  std::array<uint32_t, max_tensor_rank> box{};  // elements per copy, 1 to 256 in each dimension
  TensorSwizzle swizzle = TensorSwizzle::none;

  bool operator==(const TensorMapSpec&) const = default;
};

}  // namespace rapt
