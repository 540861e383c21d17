// Tensors from a .safetensors file or a folder of .npy files, and the Problem that they and the user's words describe.
// Called by run. Shapes and dtypes come from the tensors, all else from the words. A contradiction is an error.
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

// path: FILE.safetensors, or a folder in which NAME.npy is tensor NAME. words: of a problem line
// (docs/problem-line.md). Stored shapes are [batch, heads, seqlen, dim]; with the word layout=bshd [batch, seqlen,
// heads, dim]; with cu_seqlens_q and cu_seqlens_k [total, heads, dim].
LoadedProblem load_problem(const std::string& path, const std::vector<std::string>& words);

// A note if allowed sizes look like another layout, else "". For dense q and k that were read without a layout word.
std::string layout_note(const check::HostTensor& q, const check::HostTensor& k);

// Reorders a result from logical to stored order: the inverse of what load_problem does to q.
check::HostTensor as_stored(const Problem& problem, const check::HostTensor& tensor);

}  // namespace rapt::lab
