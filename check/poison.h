// Poisoned outputs: every element a NaN of a marked bit pattern, with a margin of it around and in the gaps of strides.
// Made by make_outputs; compare.cpp finds unwritten elements and broken canaries with it.
#pragma once

#include "tensor.h"

namespace rapt::check {

// First and last reachable element, relative to element (0, ..., 0); last < first when the tensor is empty.
struct Span {
  int64_t first = 0, last = 0;
};
Span reach(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides);

// Strides of a tensor in logical order that lies in memory as `layout` says (rank 4, or packed rank 3).
std::vector<int64_t> layout_strides(Layout layout, const std::vector<int64_t>& shape);

HostTensor make_poisoned(DType dtype, std::vector<int64_t> shape, std::vector<int64_t> strides);
// Does element `index` (from data()) still hold the poison?
bool is_poison(const HostTensor& tensor, int64_t index);
// Storage outside the tensor's elements that no longer holds the poison. Only for tensors of make_poisoned.
int64_t broken_canaries(const HostTensor& tensor);

}  // namespace rapt::check
