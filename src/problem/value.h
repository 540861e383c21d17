// WordReader: reads the values of a problem line's words (numbers, lists, choices, files of lengths). Its messages
// contain the word. Base class of LineReader in parse.cpp. It does not know the meaning of the values.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "problem/words.h"

namespace rapt {

// Returns the word for a message: with unprintable bytes as \xNN, and shortened if it is long.
std::string quoted(std::string_view word);

// Returns DType::none if the text is not a dtype of q, k, v or out.
DType dtype_named(std::string_view text);

// Calls take(item) for every item between commas. An empty text has no items.
template <class Take>
void each_item(std::string_view text, Take take) {
  if (text.empty()) return;
  for (size_t comma = 0; comma != std::string_view::npos; text.remove_prefix(std::min(comma + 1, text.size()))) {
    comma = text.find(',');
    take(text.substr(0, comma));
  }
}

class WordReader {
 protected:
  int64_t integer(std::string_view text, int64_t lowest, int64_t highest) const;
  int32_t length(std::string_view text) const {
    return static_cast<int32_t>(integer(text, 0, std::numeric_limits<int32_t>::max()));
  }
  float real(std::string_view text) const;
  DType dtype(std::string_view text) const;
  std::vector<int64_t> integers(std::string_view text, int64_t bound, size_t at_most) const;  // returns at least one
  std::array<bool, 4> broadcast_axes(std::string_view text) const;                            // [b,1,q,k]
  template <class Enum, size_t n>
  Enum choice(const std::array<std::string_view, n>& names, std::string_view text, size_t first) const;
  template <class Take>
  void each_length(std::string_view value, Take take) const;  // "17,0,512" or "@file"

  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    invalid("word ", quoted(word_), ": ", parts...);
  }

  std::string_view word_;  // the word being read

 private:
  std::string file_text(std::string_view path) const;
};

template <class Enum, size_t n>
Enum WordReader::choice(const std::array<std::string_view, n>& names, std::string_view text, size_t first) const {
  std::string known;
  for (size_t i = first; i < n; ++i) {
    if (names[i] == text) return static_cast<Enum>(i);
    known += (known.empty() ? "" : ", ") + std::string(names[i]);
  }
  fail(quoted(text), " is not one of ", known);
}

// Calls take(item) for each length of "17,0,512" or of "@file". In a file, white space and commas separate lengths.
template <class Take>
void WordReader::each_length(std::string_view value, Take take) const {
  size_t count = 0;
  const auto counted = [&](std::string_view item) {
    if (++count > words::max_list_items) fail("more than ", words::max_list_items, " lengths");
    take(item);
  };
  if (value.empty() || value[0] != '@') return each_item(value, counted);
  const std::string text = file_text(value.substr(1));
  for (size_t at = 0; at < text.size();) {
    const size_t stop = std::min(text.find_first_of(", \t\r\n", at), text.size());
    if (stop > at) counted(std::string_view(text).substr(at, stop - at));
    at = stop + 1;
  }
}

}  // namespace rapt
