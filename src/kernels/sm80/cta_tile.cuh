// CtaTile: the work of one CTA of attention_sm80, and the calling thread. Device only.
#pragma once

#include "shared/params.h"

namespace rapt {

struct CtaTile {
  int thread, lane, warp_m, warp_n;
  unsigned smem;                                                     // address of the dynamic shared memory
  int batch = 0, head = 0, head_k = 0, seqlen_q = 0, first_row = 0;  // first_row: first query, counted in the sequence
  index_t first_q = 0, first_k = 0;                                  // packed rows at which the sequence begins
};

}  // namespace rapt
