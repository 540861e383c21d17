// Converts rapt_sdpa_args to a Problem, and checks every rule about the arguments of attention before anything runs.
// Called by sdpa.cpp. Throws Error that names argument, value and rule. Writes nothing.
#pragma once

#include "problem/problem.h"
#include "rapt/rapt.h"

namespace rapt {

// Reads shapes and addresses, never contents. The returned Problem has also passed rapt::validate.
Problem problem_from(const rapt_sdpa_args& args);

// Throws if the used part of a caller's workspace overlaps a tensor of the call.
void check_workspace_disjoint(const rapt_sdpa_args& args, size_t used);

// Checks the values of cu_seqlens, seqused, starts, descales, k_mean and mask. The host must be able to read these
// tensors. The Problem does not contain such values, so calls that differ only in them share a plan.
void check_contents(const rapt_sdpa_args& args, const Problem& problem);

// Returns whether v is the first channels of k, in the same memory. Such calls can load K and V at once.
bool is_v_in_k(const rapt_tensor& k, const rapt_tensor& v);

}  // namespace rapt
