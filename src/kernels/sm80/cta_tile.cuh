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

// The query and the head of a row.
template <const Sm80Config& cfg>
inline int query_of(const AttentionParams& p, int row) {
  return cfg.packs_heads ? static_cast<int>(p.by_group.quotient(static_cast<unsigned>(row))) : row;
}
template <const Sm80Config& cfg>
inline int head_of(const AttentionParams& p, const CtaTile& cta, int row) {
  return cta.head + (cfg.packs_heads ? row - query_of<cfg>(p, row) * static_cast<int>(p.by_group.value) : 0);
}

}  // namespace rapt
