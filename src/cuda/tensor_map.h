// Tensor maps: what a bulk tensor copy (TMA, sm_90 and newer) knows of a tensor in GPU memory, as a kernel parameter.
// Used by host halves of kernels that load by them; needs an opened driver, but no context and no GPU call.
#pragma once

#include <array>
#include <cstdint>

namespace rapt::cuda {

// CUtensorMap. A kernel takes it by value, as a member of its `const __grid_constant__` parameter block.
struct alignas(64) TensorMap {
  unsigned char bytes[128];
};
static_assert(sizeof(TensorMap) == 128 && alignof(TensorMap) == 64);

enum class TensorElement : uint8_t { u8, f16, bf16, f32 };

// How 16-byte pieces of a box's rows change places in shared memory: within spans of so many bytes.
enum class TensorSwizzle : uint8_t { none, bytes_32, bytes_64, bytes_128 };

inline constexpr int max_tensor_rank = 5;

// Dimensions go from the innermost, whose elements are adjacent. What a box covers outside the tensor is read as zero.
// A copy's innermost coordinate must be a multiple of 16 bytes: on an H200 the copy ended otherwise with an illegal
// instruction.
struct TensorMapSpec {
  TensorElement element = TensorElement::f16;
  const void* base = nullptr;  // in GPU memory, a multiple of 16 bytes
  int rank = 1;
  std::array<uint64_t, max_tensor_rank> sizes{};  // elements, 1 to 2^32
  std::array<uint64_t, max_tensor_rank - 1>
      strides{};                                // bytes, of dimensions 1 to rank - 1: multiples of 16, below 2^40
  std::array<uint32_t, max_tensor_rank> box{};  // elements that one copy moves, 1 to 256 a dimension
  TensorSwizzle swizzle = TensorSwizzle::none;
};

// Throws Error{invalid_argument} naming what breaks a rule of tensor maps, Error{environment} where the driver cannot
// make them.
TensorMap make_tensor_map(const TensorMapSpec& spec);

}  // namespace rapt::cuda
