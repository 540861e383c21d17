// RAPT_CHECK_CONTENTS: copies lists and masks from the GPU to the host and checks them by the CPU's rules. Called by
// sdpa.cpp. Synchronises the stream.
#pragma once

#include "problem/problem.h"
#include "rapt/rapt.h"

namespace rapt {

// Needs a ContextScope of the tensors' device. Throws Error with the wrong element, or if the stream is captured.
void check_device_contents(const rapt_sdpa_args& args, const Problem& problem, void* stream);

}  // namespace rapt
