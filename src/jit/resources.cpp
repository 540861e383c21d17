// Reads the report of ptxas about a kernel from the compiler's log (--ptxas-options=-v).
// Used by the lab's resource ledger and by tests.
#include <algorithm>
#include <cctype>
#include <charconv>

#include "jit/jit.h"

namespace rapt::jit {
namespace {

// Returns the number directly before `unit`, as in "0 bytes spill stores". Returns 0 if there is none.
int number_before(std::string_view line, std::string_view unit) {
  const size_t end = line.find(unit);
  if (end == std::string_view::npos) return 0;
  size_t begin = end;
  while (begin > 0 && std::isdigit(static_cast<unsigned char>(line[begin - 1]))) --begin;
  int number = 0;
  std::from_chars(line.data() + begin, line.data() + end, number);
  return number;
}

bool is_warning(std::string_view line) {
  // Performance notes have a code such as (C7510), and are printed as "info".
  const size_t code = line.find("(C7");
  return line.find("warning") != std::string_view::npos || (code != std::string_view::npos && code + 3 < line.size() &&
                                                            std::isdigit(static_cast<unsigned char>(line[code + 3])));
}

}  // namespace

Resources parse_resources(std::string_view log) {
  Resources found;
  for (size_t at = 0; at < log.size();) {
    const size_t end = std::min(log.find('\n', at), log.size());
    const std::string_view line = log.substr(at, end - at);
    at = end + 1;
    if (is_warning(line)) found.warnings.emplace_back(line);
    // ptxas prints such a line for the kernel, and one for each function that is not inlined.
    if (line.find(" bytes stack frame") != std::string_view::npos) {
      found.stack_bytes = std::max(found.stack_bytes, number_before(line, " bytes stack frame"));
      found.spill_store_bytes += number_before(line, " bytes spill stores");
      found.spill_load_bytes += number_before(line, " bytes spill loads");
    }
    if (line.find("Used ") != std::string_view::npos && line.find(" registers") != std::string_view::npos) {
      found.known = true;
      found.registers = number_before(line, " registers");
      found.barriers = number_before(line, " barriers");
      found.shared_bytes = number_before(line, " bytes smem");
    }
  }
  return found;
}

}  // namespace rapt::jit
