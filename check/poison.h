// Poisoned outputs: every element is a NaN with a special bit pattern, the poison. The margins around the tensor and
// the gaps between strided elements hold it, too. make_outputs creates such outputs. compare.cpp uses the poison to
// find unwritten elements and overwritten margins.
#pragma once

#include "tensor.h"

namespace rapt::check {

// The first and the last reachable element, relative to element (0, ..., 0). last < first if the tensor is empty.
struct Span {
  int64_t first = 0, last = 0;
};
Span reach(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides);

// The strides, in logical order, of a tensor that is stored in memory in the order `layout` (rank 4, or packed rank 3).
std::vector<int64_t> layout_strides(Layout layout, const std::vector<int64_t>& shape);

HostTensor make_poisoned(DType dtype, std::vector<int64_t> shape, std::vector<int64_t> strides);
// True if element `index` (from data()) still holds the poison.
bool is_poison(const HostTensor& tensor, int64_t index);
// The number of elements outside the tensor that no longer hold the poison. Only for tensors from make_poisoned().
int64_t broken_canaries(const HostTensor& tensor);

}  // namespace rapt::check
