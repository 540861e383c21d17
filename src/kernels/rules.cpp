// Implements rules.h.
#include "kernels/rules.h"

namespace rapt {

bool refused_by_all(const char* family, const Problem& p, std::string* why) {
  if (p.op != Op::forward) return !refuse(family, why, "op is not forward attention");
  if (p.page_size != 0) return !refuse(family, why, "page=", p.page_size, ": paged KV is not supported");
  if (!p.mod.empty()) return !refuse(family, why, "mod=", p.mod, ": score modifications are not supported");
  return false;
}

bool has_exact_alibi(const Problem& p) {
  return !p.has_starts && p.seqlen_q <= longest_exact_alibi && p.seqlen_k <= longest_exact_alibi;
}

bool reads_scores_in_pairs(const Problem& p) {
  return (p.bias.present() || p.mask.present()) && (!p.bias.present() || p.bias.pairs) &&
         (!p.mask.present() || p.mask.pairs);
}

bool refused_for_gpu(const char* family, const Device& device, std::string* why) {
  if (device.kind != DeviceKind::cuda) return !refuse(family, why, "device ", device.name, " is not a GPU");
  if (device.sm >= 80) return false;
  return !refuse(family, why, "device ", device.name, " is sm_", device.sm, ": must be sm_80 or newer");
}

}  // namespace rapt
