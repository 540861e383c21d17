// RAPT_CHECK_CONTENTS: values of lists and masks that lie on a GPU, brought to the host and held to the CPU's rules.
// Called by sdpa.cpp; synchronises the stream.
#pragma once

#include "problem/problem.h"
#include "rapt/rapt.h"

namespace rapt {

// In a ContextScope of the tensors' device. Throws Error naming the wrong element, or when the stream is captured.
void check_device_contents(const rapt_sdpa_args& args, const Problem& problem, void* stream);

}  // namespace rapt
