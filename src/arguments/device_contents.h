// RAPT_CHECK_CONTENTS: copies lists and masks from the GPU to the host and checks them by the CPU's rules. Called by
// sdpa.cpp. Synchronises the stream.
#pragma once

#include "problem/problem.h"
#include "rapt/rapt.h"

namespace rapt {

// Needs a ContextScope of the tensors' device. Throws Error if an element is wrong (the sentence names it), or if the
// stream is being captured.
void check_device_contents(const rapt_sdpa_args& args, const Problem& problem, void* stream);

}  // namespace rapt
