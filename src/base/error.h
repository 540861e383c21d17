// Error: the only exception type of rapt, and the helper that builds its sentence.
// c_api.cpp turns it into a status and a message of the thread.
#pragma once

#include <charconv>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

namespace rapt {

// The values are those of rapt_status (rapt.h), so that lower layers need not include the C ABI.
enum class ErrorCode {
  invalid_argument = 1,
  unsupported = 2,
  out_of_memory = 3,
  environment = 4,
  device = 5,
  internal = 6
};

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

// Not inlined, because sentences have hundreds of numbers.
template <class Number>
[[gnu::noinline]] void append_number(std::string& text, Number number) {
  char digits[64];
  char* const end = digits + sizeof digits;
  if constexpr (std::is_floating_point_v<Number>)
    text.append(digits, std::to_chars(digits, end, number, std::chars_format::general, 6).ptr);
  else
    text.append(digits, std::to_chars(digits, end, number).ptr);
}

// Appends the text of one part. The text must be the same in every locale, because concat() also makes kernel sources
// and file names. Numbers print as in the classic locale: floating point with six significant digits, bool as 0 or 1.
template <class Part>
void append_part(std::string& text, const Part& part) {
  if constexpr (std::is_same_v<Part, char>) {
    text += part;
  } else if constexpr (std::is_same_v<Part, bool>) {
    text += part ? '1' : '0';
  } else if constexpr (std::is_enum_v<Part> && std::is_convertible_v<Part, int64_t>) {
    append_part(text, static_cast<int64_t>(part));
  } else if constexpr (std::is_same_v<Part, void*> || std::is_same_v<Part, const void*>) {
    char digits[2 * sizeof part];
    const auto address = reinterpret_cast<uintptr_t>(part);
    text += address == 0 ? "" : "0x";
    text.append(digits, std::to_chars(digits, digits + sizeof digits, address, 16).ptr);
  } else if constexpr (std::is_arithmetic_v<Part>) {
    append_number(text, part);
  } else {
    text += std::string_view(part);
  }
}

// concat("head_dim ", 320, ": at most 256") -> std::string.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::string text;
  (append_part(text, parts), ...);
  return text;
}

// A sentence names the argument, its value and the rule: invalid("softcap = ", c, ": must be greater than 0").
// Errors are rare, so this code is compiled for size.
template <class... Parts>
[[noreturn, gnu::cold]] void invalid(const Parts&... parts) {
  throw Error(ErrorCode::invalid_argument, concat(parts...));
}
template <class... Parts>
[[noreturn, gnu::cold]] void unsupported(const Parts&... parts) {
  throw Error(ErrorCode::unsupported, concat(parts...));
}

}  // namespace rapt
