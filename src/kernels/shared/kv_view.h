// KvView: the addresses of the rows of K or V of one sequence and kv head. Only this file knows the layout of the KV
// cache: in dense and packed tensors the rows are `pitch` elements apart. Compiled by host and device code; includes
// nothing outside shared/.
#pragma once

#include "params.h"

namespace rapt {

// Returns the offset of the row of key j from the tensor's address, in elements. first_packed_row: the packed row at
// which the sequence begins; 0 if dense.
constexpr index_t kv_row(const TensorRef& t, index_t batch, index_t head_k, index_t first_packed_row, index_t j) {
  return t.index(batch, head_k, first_packed_row + j);
}

// The rows of one sequence and kv head, for kernels that loop over them.
struct KvView {
  const TensorRef& tensor;
  const char* rows = nullptr;  // base pointer: the address of the row of key 0

  explicit KvView(const TensorRef& t) : tensor(t) {}
  KvView(const TensorRef& t, int element_bytes, index_t batch, index_t head_k, index_t first_packed_row)
      : tensor(t),
        rows(static_cast<const char*>(t.data) + element_bytes * kv_row(t, batch, head_k, first_packed_row, 0)) {}

  // pitch(): the row stride. row(j): the offset of key j from `rows`. Both are in elements, not bytes.
  index_t pitch() const { return tensor.row; }
  index_t row(index_t j) const { return j * pitch(); }
};

}  // namespace rapt
