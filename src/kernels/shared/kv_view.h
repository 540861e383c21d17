// KvView: where the rows of one sequence's keys or values lie, for one kv head. The one place that knows how keys are
// laid out: dense and packed tensors keep them `pitch` apart. Compiled by host and device code; includes nothing
// outside shared/.
#pragma once

#include "params.h"

namespace rapt {

// Elements from the tensor's address to the row of key j. first_packed_row: where the sequence begins, 0 in dense
// tensors.
constexpr index_t kv_row(const TensorRef& t, index_t batch, index_t head_k, index_t first_packed_row, index_t j) {
  return t.index(batch, head_k, first_packed_row + j);
}

// A sequence's rows, for kernels that walk over them.
struct KvView {
  const TensorRef& tensor;
  const char* rows = nullptr;  // the row of key 0

  explicit KvView(const TensorRef& t) : tensor(t) {}
  // Elements of `element_bytes`.
  KvView(const TensorRef& t, int element_bytes, index_t batch, index_t head_k, index_t first_packed_row)
      : tensor(t),
        rows(static_cast<const char*>(t.data) + element_bytes * kv_row(t, batch, head_k, first_packed_row, 0)) {}

  // In elements from `rows`: the row of key j.
  index_t pitch() const { return tensor.row; }
  index_t row(index_t j) const { return j * pitch(); }
};

}  // namespace rapt
