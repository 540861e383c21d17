// Implements resources.h.
#include "cpu/resources.h"

#include <cstdint>
#include <cstdlib>
#include <new>

namespace rapt {

AlignedBuffer::~AlignedBuffer() { std::free(data_); }

std::byte* AlignedBuffer::reserve(size_t bytes) {
  if (bytes <= bytes_) return data_;
  if (bytes > SIZE_MAX - 63) throw std::bad_alloc();
  const size_t rounded = (bytes + 63) / 64 * 64;
  void* fresh = std::aligned_alloc(64, rounded);
  if (fresh == nullptr) throw std::bad_alloc();
  std::free(data_);
  data_ = static_cast<std::byte*>(fresh);
  bytes_ = rounded;
  return data_;
}

}  // namespace rapt
