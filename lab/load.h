// Reads tensors from a .safetensors file or a folder of .npy files, and builds the Problem that the tensors and the
// user's words describe. Called by run. Shapes and dtypes come from the tensors, everything else comes from the words.
// A contradiction is an error.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "check/tensor.h"
#include "lab/safetensors.h"

namespace rapt::lab {

struct LoadedProblem {
  Problem problem;
  check::Inputs inputs;
  std::map<std::string, std::string> metadata;
  std::string note;  // something unusual that the user should know; "": nothing
};

// path: FILE.safetensors, or a folder in which NAME.npy is tensor NAME. words: words of a problem line
// (docs/problem-line.md). Stored shapes are [batch, heads, seqlen, dim]. With the word layout=bshd they are [batch,
// seqlen, heads, dim]. With cu_seqlens_q and cu_seqlens_k they are [total, heads, dim].
LoadedProblem load_problem(const std::string& path, const std::vector<std::string>& words);

// For dense q and k that were read without a layout word. Returns a note if their sizes are allowed but look like
// another layout; otherwise "".
std::string layout_note(const check::HostTensor& q, const check::HostTensor& k);

// Reorders a result from logical to stored order: the inverse of what load_problem does to q.
check::HostTensor as_stored(const Problem& problem, const check::HostTensor& tensor);

}  // namespace rapt::lab
