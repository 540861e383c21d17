// KvView: the addresses of the rows of K or V of one sequence and kv head, and of their descales. In dense and packed
// tensors the rows are `pitch` elements apart. In a paged cache a table says where they are (PageTable). Compiled by
// host and device code; includes nothing outside shared/.
#pragma once

#include "params.h"

namespace rapt {

// Returns the offset of the row of key j from the tensor's address, in elements. first_packed_row: the packed row at
// which the sequence begins; 0 if K and V are not packed.
constexpr index_t kv_row(const AttentionParams& p, const TensorRef& t, index_t batch, index_t head_k,
                         index_t first_packed_row, index_t j) {
  if (!p.pages.present()) return t.index(batch, head_k, first_packed_row + j);
  const PageTable::Place place = p.pages.of(batch, static_cast<unsigned>(j));
  return t.index(place.page, head_k, place.row);
}

// Returns the address of the descale of key j, if K and V are paged and each key has its own descale. ScaleRef::batch
// is then the stride of pages, and ScaleRef::position that of the rows of a page.
constexpr const float* paged_descale(const PageTable& pages, const ScaleRef& scale, index_t batch, index_t head_k,
                                     index_t j) {
  const PageTable::Place place = pages.of(batch, static_cast<unsigned>(j));
  return scale.data + place.page * scale.batch + head_k * scale.head + place.row * scale.position;
}

// Returns the address of the descale of key j; if descales are per channel, of channel 0. Descales of blocks count
// positions of the sequence, also if K and V are paged.
constexpr const float* kv_descale(const AttentionParams& p, const ScaleRef& scale, index_t batch, index_t head_k,
                                  index_t first_packed_row, index_t j) {
  if (p.pages.present() && scale.rows == 1) return paged_descale(p.pages, scale, batch, head_k, j);
  return scale.at(batch, head_k, first_packed_row, j);
}

// The rows of one sequence and kv head, for kernels that loop over them. If K and V are not paged, the rows are
// pitch() elements apart.
struct KvView {
  const TensorRef& tensor;
  const char* rows = nullptr;  // base pointer: the address of the row of key 0; paged: of row 0 of page 0

  explicit KvView(const TensorRef& t) : tensor(t) {}
  KvView(const AttentionParams& p, const TensorRef& t, int element_bytes, index_t batch, index_t head_k,
         index_t first_packed_row)
      : tensor(t),
        rows(static_cast<const char*>(t.data) +
             element_bytes * (p.pages.present() ? t.index(0, head_k, 0) : t.index(batch, head_k, first_packed_row))) {}

  // pitch(): the row stride. row(j): the offset of key j from `rows`. Both are in elements, not bytes.
  index_t pitch() const { return tensor.row; }
  index_t row(index_t j) const { return j * pitch(); }
  // The offset of key j from `rows` if K and V are paged.
  index_t paged_row(const PageTable& pages, index_t batch, int j) const {
    const PageTable::Place place = pages.of(batch, static_cast<unsigned>(j));
    return place.page * tensor.batch + place.row * pitch();
  }
};

}  // namespace rapt
