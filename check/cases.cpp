// Reads case files line by line.
#include "cases.h"

#include <fcntl.h>

#include <filesystem>
#include <sstream>

#include "base/error.h"
#include "base/files.h"

namespace rapt::check {
namespace {

std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

std::vector<Fill> parse_fills(const std::string& text, const std::string& where) {
  const std::string key = "fills=";
  if (!text.starts_with(key))
    invalid(where, ": \"", text, "\" after the semicolon: must be fills=NAME,NAME or unpacked");
  std::vector<Fill> fills;
  for (size_t at = key.size(); at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    try {
      fills.push_back(parse_fill(text.substr(at, comma - at)));
    } catch (const Error& error) {
      throw Error(error.code(), where + ": " + error.what());
    }
    at = comma + 1;
  }
  return fills;
}

std::string path_of(const std::string& name, const std::string& directory) {
  return is_case_set(name) ? (std::filesystem::path(directory) / (name + ".txt")).string() : name;
}

}  // namespace

std::string Case::where() const { return concat(file, ":", number); }

Problem Case::problem() const {
  try {
    return parse_problem(line);
  } catch (const Error& error) {
    throw Error(error.code(), where() + ": " + error.what());
  }
}

bool is_case_set(const std::string& name) {
  return name.find('/') == std::string::npos && name.find('.') == std::string::npos;
}

std::vector<Case> load_cases(const std::string& name, const std::string& directory) {
  const std::string path = path_of(name, directory);
  constexpr size_t most = size_t{16} << 20;  // a million lines
  std::string all;
  if (const std::string wrong = read_regular(AT_FDCWD, path, most, all); !wrong.empty())
    invalid("cases ", name, ": cannot read ", path, ": it ", wrong);
  std::istringstream file(all);
  return read_cases(file, path);
}

std::vector<Case> read_cases(std::istream& file, const std::string& path) {
  std::string text;
  std::vector<Case> cases;
  for (int64_t number = 1; std::getline(file, text); ++number) {
    Case c;
    c.file = path;
    c.number = number;
    text = trimmed(text.substr(0, text.find('#')));
    const size_t semicolon = text.find(';');
    c.line = trimmed(text.substr(0, semicolon));
    if (c.line.empty() && semicolon != std::string::npos) invalid(c.where(), ": a semicolon without a problem line");
    if (c.line.empty()) continue;
    c.fills = {Fill::normal};
    const std::string rest = semicolon == std::string::npos ? "" : trimmed(text.substr(semicolon + 1));
    c.packed = rest != "unpacked";
    if (c.packed && semicolon != std::string::npos) c.fills = parse_fills(rest, c.where());
    cases.push_back(std::move(c));
  }
  return cases;
}

}  // namespace rapt::check
