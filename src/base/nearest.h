// Finds the known word that the user probably meant, for error sentences about unknown words.
// Used by problem/hint.cpp, kernels/config_table.cpp and the lab.
#pragma once

#include <algorithm>
#include <string_view>
#include <vector>

namespace rapt {

// The number of insertions, deletions, substitutions and swaps of neighbours between two words. Ignores case.
inline size_t edit_distance(std::string_view a, std::string_view b) {
  const auto same = [](char x, char y) {
    const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
    return lower(x) == lower(y);
  };
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i)
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + !same(a[i - 1], b[j - 1])});
      if (i > 1 && j > 1 && same(a[i - 1], b[j - 2]) && same(a[i - 2], b[j - 1]))
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  return d[a.size()][b.size()];
}

// The most similar text of `known` (the first of equals), or "" if none is similar. Similar means: at most one edit for
// every three letters of the word (one edit for a shorter word), and fewer edits than the known text has letters. More
// is not a typing error. The result is also "" if
// the word has more than 64 letters.
template <class Known>
std::string_view nearest(std::string_view word, const Known& known) {
  std::string_view best;
  size_t least = word.size() > 64 ? 0 : std::max<size_t>(1, word.size() / 3) + 1;
  for (const std::string_view candidate : known) {
    if (candidate.size() > word.size() + least || word.size() > candidate.size() + least) continue;
    const size_t distance = edit_distance(word, candidate);
    if (distance < least && distance < candidate.size()) least = distance, best = candidate;
  }
  return best;
}

}  // namespace rapt
