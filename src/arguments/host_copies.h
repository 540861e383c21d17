// Copies of tensors in host memory, for checks of contents on a GPU (device_contents.cpp, operations/kv_append.cpp).
#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include "rapt/rapt.h"

namespace rapt {

// Copies each tensor as one span of bytes, so that its strides stay valid. The views live as long as this object.
class HostCopies {
 public:
  // Needs a ContextScope of the tensors' device. Copying waits for the stream.
  explicit HostCopies(void* stream) : stream_(stream) {}
  // Returns a view of the host copy of *tensor. If `tensor` is null or has no elements, returns `tensor` itself.
  const rapt_tensor* of(const rapt_tensor* tensor);

 private:
  void* const stream_;
  std::deque<std::vector<std::byte>> storage_;
  std::deque<rapt_tensor> views_;
};

}  // namespace rapt
