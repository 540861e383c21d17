// Rules that families share: what no kernel carries out yet, and which GPUs kernels are written for.
// Each returns true when the problem is refused, with a sentence in `why` where it is given; nothing is formatted else.
#pragma once

#include <string>

#include "base/error.h"
#include "device/device.h"
#include "problem/problem.h"

namespace rapt {

// "attention_sm80: head_dim 320: ...", false: to be returned by accepts().
template <class... Parts>
bool refuse(const char* family, std::string* why, const Parts&... parts) {
  if (why != nullptr) *why = concat(family, ": ", parts...);
  return false;
}

bool refused_by_all(const char* family, const Problem& problem, std::string* why);
bool refused_for_gpu(const char* family, const Device& device, std::string* why);

}  // namespace rapt
