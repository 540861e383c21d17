// Poisoned outputs: every element is a NaN with a special bit pattern, also in the margin around it and in the gaps of
// strides. Created by make_outputs; compare.cpp uses it to find unwritten elements and overwritten margins.
#pragma once

#include "tensor.h"

namespace rapt::check {

// First and last reachable element, relative to element (0, ..., 0). last < first if the tensor is empty.
struct Span {
  int64_t first = 0, last = 0;
};
Span reach(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides);

// Strides of a tensor in logical order that is stored in memory as `layout` (rank 4, or packed rank 3).
std::vector<int64_t> layout_strides(Layout layout, const std::vector<int64_t>& shape);

HostTensor make_poisoned(DType dtype, std::vector<int64_t> shape, std::vector<int64_t> strides);
// True if element `index` (from data()) still holds the poison.
bool is_poison(const HostTensor& tensor, int64_t index);
// Number of elements outside the tensor that no longer hold the poison. Only for tensors from make_poisoned.
int64_t broken_canaries(const HostTensor& tensor);

}  // namespace rapt::check
