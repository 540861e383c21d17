// Rules that families share: facts about problems, and refusals of features that no kernel supports yet and of
// unsupported GPUs. A refusal returns true if the problem is refused, and writes the reason to *why. If why is null,
// nothing is formatted.
#pragma once

#include <string>

#include "base/error.h"
#include "device/device.h"
#include "problem/problem.h"

namespace rapt {

// Writes "attention_sm80: head_dim 320: ..." to *why and returns false, the result of accepts().
template <class... Parts>
bool refuse(const char* family, std::string* why, const Parts&... parts) {
  if (why != nullptr) *why = concat(family, ": ", parts...);
  return false;
}

// The longest sequences for which the distances of ALiBi are exact in f32, if the call has no starts.
constexpr int64_t longest_exact_alibi = int64_t{1} << 23;
// Returns whether the distances of ALiBi are exact in f32.
bool has_exact_alibi(const Problem& problem);
// Returns how kernels can read bias and mask, as far as present. Without both, all members are false.
ScoreAccess common_score_access(const Problem& problem);

// Refuses soft caps for which the kernels' factor scale / softcap is not exact enough.
bool refused_for_softcap(const char* family, const Problem& problem, std::string* why);
bool refused_by_all(const char* family, const Problem& problem, std::string* why);
bool refused_for_gpu(const char* family, const Device& device, std::string* why);

}  // namespace rapt
