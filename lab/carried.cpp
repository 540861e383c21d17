// What the program carries of the checkout it was built from, so that an installed one needs no files: case sets, and
// pages of docs/. Called by the commands and by program.cpp.
#include <map>
#include <sstream>

#include "base/error.h"
#include "base/nearest.h"
#include "lab/commands.h"

namespace rapt::lab {

// Written by cmake/RaptEmbed.cmake: file name to text.
const std::map<std::string_view, std::string_view>& embedded_cases();
const std::map<std::string_view, std::string_view>& embedded_pages();

namespace {

// Names without their ending.
std::vector<std::string_view> names_of(const std::map<std::string_view, std::string_view>& files) {
  std::vector<std::string_view> names;
  for (const auto& [file, text] : files) names.push_back(file.substr(0, file.rfind('.')));
  return names;
}

}  // namespace

std::string did_you_mean(std::string_view word, const std::vector<std::string_view>& known) {
  const std::string_view near = nearest(word, known);
  return near.empty() ? "" : concat("; did you mean ", near, "?");
}

std::vector<check::Case> cases_named(const char* option, const std::string& name) {
  if (!check::is_case_set(name)) return check::load_cases(name);
  const auto found = embedded_cases().find(name + ".txt");
  if (found == embedded_cases().end()) {
    const std::vector<std::string_view> sets = names_of(embedded_cases());
    std::string all;
    for (const std::string_view set : sets) all += concat(all.empty() ? "" : " ", set);
    invalid(option, " ", name, ": the sets are ", all, "; a file's name has a dot or a slash",
            did_you_mean(name, sets));
  }
  std::istringstream text{std::string(found->second)};
  return check::read_cases(text, concat("check/cases/", found->first));
}

std::vector<std::string_view> page_names() { return names_of(embedded_pages()); }

std::string_view page_named(const std::string& name) {
  const auto found = embedded_pages().find(name.ends_with(".md") ? name : name + ".md");
  return found == embedded_pages().end() ? std::string_view() : found->second;
}

}  // namespace rapt::lab
