// Guesses what the user meant by an unknown word of a problem line, or by sizes in an unusual order. Used by parse.cpp,
// validate.cpp and the lab.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace rapt {

// Returns "did you mean causal? ", or "" if no word is similar. flags: words without a value (causal); values: names of
// words with a value (window, for window=L,R).
std::string word_hint(std::string_view word, const std::vector<std::string_view>& flags,
                      const std::vector<std::string_view>& values);

// True if dense q and k make more sense as [batch, seqlen, heads, head_dim]: k has more heads than keys, and with the
// sizes swapped the heads fit grouped attention.
bool looks_like_bshd(int64_t heads_q, int64_t seqlen_q, int64_t heads_k, int64_t seqlen_k);

}  // namespace rapt
