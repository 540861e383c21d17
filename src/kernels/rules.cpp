// Implements rules.h.
#include "kernels/rules.h"

namespace rapt {

bool refused_by_all(const char* family, const Problem& p, std::string* why) {
  if (p.op != Op::forward) return !refuse(family, why, "op is not forward attention");
  if (!p.mod.empty()) return !refuse(family, why, "mod=", p.mod, ": score modifications are not supported");
  return false;
}

bool refused_for_softcap(const char* family, const Problem& p, std::string* why) {
  if (!p.softcap || has_moderate_softcap(p)) return false;
  return !refuse(family, why, "softcap = ", *p.softcap, ", scale = ", p.softmax_scale(),
                 ": softcap must be from 2^-100 to 2^100, and scale / softcap 0 or a normal f32");
}

bool has_exact_alibi(const Problem& p) {
  return !p.has_starts && p.seqlen_q <= longest_exact_alibi && p.seqlen_k <= longest_exact_alibi;
}

ScoreAccess common_score_access(const Problem& p) {
  if (!p.bias.present()) return p.mask.access;
  if (!p.mask.present()) return p.bias.access;
  const ScoreAccess &a = p.bias.access, &b = p.mask.access;
  return {a.pairs && b.pairs, a.octets && b.octets, a.boxes && b.boxes, a.one_row && b.one_row};
}

bool refused_for_gpu(const char* family, const Device& device, std::string* why) {
  if (device.kind != DeviceKind::cuda) return !refuse(family, why, "device ", device.name, " is not a GPU");
  if (device.sm >= 80) return false;
  return !refuse(family, why, "device ", device.name, " is sm_", device.sm, ": must be sm_80 or newer");
}

}  // namespace rapt
