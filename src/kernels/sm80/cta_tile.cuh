// CtaTile: the work of one CTA of attention_sm80, and the calling thread. Device only.
#pragma once

#include "config.h"
#include "shared/params.h"

namespace rapt {

struct CtaTile {
  int thread, lane, warp_m, warp_n;
  unsigned smem;                                                     // address of the dynamic shared memory
  int batch = 0, head = 0, head_k = 0, seqlen_q = 0, first_row = 0;  // first_row: first query, counted in the sequence
  index_t first_q = 0, first_k = 0;                                  // packed rows at which the sequence begins
};

// The head of a row. Its query is row / packed_heads.
template <const Sm80Config& cfg>
inline int head_of(const CtaTile& cta, int row) {
  return cfg.packed_heads == 1 ? cta.head : cta.head + row % cfg.packed_heads;
}

}  // namespace rapt
