// Makes a paged KV cache from dense or packed keys and values, for calls with page=N. The oracle reads the keys and
// values as they were; only the library sees pages.
#pragma once

#include "tensor.h"

namespace rapt::check {

// The tensors of a paged call. k, v: [num_pages, heads_k, page_size, dim]. block_table: i32 [batch, pages]. seqused_k:
// i32 [batch]. k_descale, v_descale: present if the scales are `token`, then f32 [num_pages, page_size, heads_k].
struct PagedKeys {
  HostTensor k, v, block_table, seqused_k, k_descale, v_descale;
};

// The pages are in a random order. Rows that no sequence uses hold NaN, and so do their descales. Entries of
// block_table past the end of a sequence are not pages. k and v have different memory orders, and so have their
// descales.
PagedKeys make_paged(const Problem& problem, const Inputs& inputs);

}  // namespace rapt::check
