// Makes a paged KV cache from dense or packed keys and values, for calls with page=N. The oracle reads the keys and
// values as they were; only the library sees pages.
#pragma once

#include "tensor.h"

namespace rapt::check {

// The tensors of a paged call. k, v: [num_pages, heads_k, page_size, dim]. block_table: i32 [batch, pages]. seqused_k:
// i32 [batch].
struct PagedKeys {
  HostTensor k, v, block_table, seqused_k;
};

// The pages are in a random order. Rows that no sequence uses hold NaN, and entries of block_table past the end of a
// sequence are not pages. k and v have different memory orders.
PagedKeys make_paged(const Problem& problem, const Inputs& inputs);

}  // namespace rapt::check
