// Implements tune_fills.h.
#include "lab/tune_fills.h"

#include "base/error.h"

namespace rapt::lab {
namespace {

// True if a problem of this kind can have keys that no query sees. If it has no such keys, hidden_nan equals normal.
bool can_hide_keys(const Problem& p) {
  return p.position_mask.present() || p.mask.dtype != DType::none || p.varlen || p.seqused || p.seqused_q ||
         p.page_size > 0;
}

}  // namespace

std::vector<check::Fill> tune_fills(const Problem& problem) {
  std::vector<check::Fill> fills{check::Fill::normal, check::Fill::huge, check::Fill::outlier, check::Fill::rescale,
                                 check::Fill::rescale_reversed};
  // acc=f16: the values of huge and of both rescale fills overflow f16 accumulators, so even a correct kernel gives Inf
  // or NaN. acc=tf32: their logits are so large that their rounding errors are, too.
  if (problem.acc != AccMode::f32) fills = {check::Fill::normal, check::Fill::outlier};
  if (can_hide_keys(problem)) fills.push_back(check::Fill::hidden_nan);
  return fills;
}

void check_fills(const std::vector<check::Fill>& fills, const std::function<void(check::Fill)>& check_one) {
  for (const check::Fill fill : fills) {
    try {
      check_one(fill);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::unsupported && fill != check::Fill::normal) continue;
      if (error.code() != ErrorCode::internal) throw;
      throw Error(ErrorCode::internal, concat("fill ", check::name_of(fill), ": ", error.what()));
    }
  }
}

}  // namespace rapt::lab
