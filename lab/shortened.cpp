// Implements shortened.h.
#include "lab/shortened.h"

#include <algorithm>

namespace rapt::lab {

bool can_be_shortened(const Problem& p) {
  return !p.varlen && !p.seqused && !p.seqused_q && p.q_starts.size() <= 1 && p.k_starts.size() <= 1 &&
         p.page_size == 0 && !p.q_strides && !p.k_strides && !p.v_strides && !p.out_strides;
}

Problem shortened(Problem p, int64_t rows, int64_t keys) {
  const int64_t group = p.group();
  // Kernels must be able to read bias and mask as before.
  if (p.bias.access != ScoreAccess{} || p.mask.access != ScoreAccess{}) rows += -rows & 15, keys += -keys & 15;
  if (p.seqlen_q == p.seqlen_k) rows = keys = std::max(rows, keys);
  p.batch = std::min<int64_t>(p.batch, 1);
  p.heads_k = group > 1 ? 1 : std::min<int64_t>(p.heads_k, 2);
  p.heads_q = group * p.heads_k;
  p.seqlen_q = std::min(p.seqlen_q, rows), p.seqlen_k = std::min(p.seqlen_k, keys);
  return parse_problem(to_string(p));
}

}  // namespace rapt::lab
