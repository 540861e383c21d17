// What somebody probably meant: by an unknown word of a problem line, by sizes in an unusual order.
// Used by problem_parse.cpp, problem_validate.cpp and the lab.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace rapt {

// "did you mean causal? ", or "" where nothing is near. flags: words without a value (causal); values: names of words
// with one (window, for window=L,R).
std::string word_hint(std::string_view word, const std::vector<std::string_view>& flags,
                      const std::vector<std::string_view>& values);

// Whether dense q and k make more sense as [batch, seqlen, heads, head_dim]: more heads of k than keys, and the sizes
// taken the other way round are heads that share keys.
bool looks_like_bshd(int64_t heads_q, int64_t seqlen_q, int64_t heads_k, int64_t seqlen_k);

}  // namespace rapt
