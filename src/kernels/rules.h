// Refusals that families share: features that no kernel supports yet, and unsupported GPUs. Each function returns true
// if the problem is refused, and writes the reason to *why. If why is null, nothing is formatted.
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

bool refused_by_all(const char* family, const Problem& problem, std::string* why);
bool refused_for_gpu(const char* family, const Device& device, std::string* why);

}  // namespace rapt
