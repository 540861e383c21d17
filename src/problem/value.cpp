// Reads single values of a problem line (see value.h). Called by parse.cpp.
// Accepts any bytes. The only exception that it throws is Error.
#include "problem/value.h"

#include <fcntl.h>

#include <charconv>

#include "base/files.h"
#include "problem/dtypes.h"

namespace rapt {

std::string quoted(std::string_view word) {
  constexpr size_t longest = 60;
  constexpr char digits[] = "0123456789abcdef";
  std::string out = "'";
  for (const char c : word.substr(0, longest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      out += c;
    } else {
      out += {'\\', 'x', digits[byte >> 4], digits[byte & 15]};
    }
  }
  return out + (word.size() > longest ? "...'" : "'");
}

DType dtype_named(std::string_view text) { return input_dtypes.named(text); }

int64_t WordReader::integer(std::string_view text, int64_t lowest, int64_t highest) const {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc::invalid_argument || (error == std::errc() && stop != end))
    fail(quoted(text), " is not a whole number");
  if (error != std::errc() || value < lowest || value > highest)
    fail(quoted(text), " is outside ", lowest, " to ", highest);
  return value;
}

float WordReader::real(std::string_view text) const {
  float value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc::invalid_argument || (error == std::errc() && stop != end))
    fail(quoted(text), " is not a number");
  if (error != std::errc()) fail(quoted(text), " is outside the range of a 32-bit float");
  return value;
}

DType WordReader::dtype(std::string_view text) const {
  if (const DType t = dtype_named(text); t != DType::none) return t;
  fail(quoted(text), " is not one of ", input_dtypes.names(", "));
}

std::vector<int64_t> WordReader::integers(std::string_view text, int64_t bound, size_t at_most) const {
  std::vector<int64_t> values;
  each_item(text, [&](std::string_view item) {
    if (values.size() == at_most) fail("more than ", at_most, " numbers");
    values.push_back(integer(item, -bound, bound));
  });
  if (values.empty()) fail("needs at least one number");
  return values;
}

std::array<bool, 4> WordReader::broadcast_axes(std::string_view text) const {
  constexpr std::string_view places = "b,h,q,k, and 1 marks a broadcast axis";
  std::array<bool, 4> one{};
  size_t axis = 0;
  const bool brackets = text.size() > 2 && text.front() == '[' && text.back() == ']';
  if (!brackets) fail("needs [b,h,q,k] with 1 where it is broadcast");
  each_item(text.substr(1, text.size() - 2), [&](std::string_view item) {
    if (axis == 4) fail(quoted(item), " in place 5: must have four places: ", places);
    if (item.size() != 1 || (item[0] != '1' && item[0] != words::score_axes[axis]))
      fail(quoted(item), " in place ", axis + 1, ": must be ", words::score_axes.substr(axis, 1),
           " or 1; the places are ", places);
    one[axis++] = item[0] == '1';
  });
  if (axis != 4) fail(axis, " places instead of four: ", places);
  return one;
}

std::string WordReader::file_text(std::string_view path) const {
  std::string text;
  const std::string wrong = read_regular(AT_FDCWD, std::string(path), words::max_line_bytes, text);
  if (!wrong.empty()) fail("the file ", wrong);
  return text;
}

}  // namespace rapt
