// The rows of one thread block of attention_sm80. Device only.
#pragma once

#include "shared/params.h"

namespace rapt {

// Which rows, and which thread is asking.
struct BlockRows {
  int thread, lane, warp_m, warp_k;
  unsigned smem;
  int batch = 0, head = 0, head_k = 0, seqlen_q = 0, first_row = 0;  // first_row: of the sequence
  index_t first_q = 0, first_k = 0;                                  // packed rows where the sequence begins
};

}  // namespace rapt
