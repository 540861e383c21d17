// What an unknown word of a problem line was probably meant to be. Used by problem_parse.cpp.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace rapt {

// "did you mean causal? ", or "" where nothing is near. flags: words without a value (causal); values: names of words
// with one (window, for window=L,R).
std::string word_hint(std::string_view word, const std::vector<std::string_view>& flags,
                      const std::vector<std::string_view>& values);

}  // namespace rapt
