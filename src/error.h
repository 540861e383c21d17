// Error: the one exception of rapt, and the helper that builds its sentence.
// Thrown anywhere below c_api.cpp, which turns it into a status and a per-thread message.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace rapt {

// The values of rapt_status (rapt.h), so that lower rooms need not include the C ABI.
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

// concat("head_dim ", 320, ": at most 256") -> std::string.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return std::move(out).str();
}

// Every sentence names the argument, its value and the rule: invalid("softcap = ", c, ": must be greater than 0").
template <class... Parts>
[[noreturn]] void invalid(const Parts&... parts) {
  throw Error(ErrorCode::invalid_argument, concat(parts...));
}
template <class... Parts>
[[noreturn]] void unsupported(const Parts&... parts) {
  throw Error(ErrorCode::unsupported, concat(parts...));
}

}  // namespace rapt
