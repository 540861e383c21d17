// rapt_sdpa_args to Problem: every rule about the arguments of attention, before anything runs.
// Called by sdpa.cpp; throws Error naming argument, value and rule; writes nothing.
#pragma once

#include "problem/problem.h"
#include "rapt/rapt.h"

namespace rapt {

// Validated: the result has passed rapt::validate as well. Reads shapes and addresses, never contents.
Problem problem_from(const rapt_sdpa_args& args);

// The part of a caller's workspace that is used shares no byte with the call's tensors.
void check_workspace_disjoint(const rapt_sdpa_args& args, size_t used);

// Of tensors that the host can read: the values of cu_seqlens, seqused_k, starts, descales, k_mean and mask. The
// Problem stays free of contents, so that calls which differ only in lengths share a plan.
void check_contents(const rapt_sdpa_args& args, const Problem& problem);

}  // namespace rapt
