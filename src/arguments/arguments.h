// From rapt_sdpa_args to Problem: checks every rule about the arguments of attention before anything runs. Called by
// sdpa.cpp. Throws Error with argument, value and rule. Writes nothing.
#pragma once

#include "problem/problem.h"
#include "rapt/rapt.h"

namespace rapt {

// The result has also passed rapt::validate. Reads shapes and addresses, never contents.
Problem problem_from(const rapt_sdpa_args& args);

// Throws if the used part of a caller's workspace overlaps a tensor of the call.
void check_workspace_disjoint(const rapt_sdpa_args& args, size_t used);

// For tensors that the host can read: checks the values of cu_seqlens, seqused_k, starts, descales, k_mean and mask.
// The Problem holds no contents, so calls that differ only in lengths share a plan.
void check_contents(const rapt_sdpa_args& args, const Problem& problem);

}  // namespace rapt
