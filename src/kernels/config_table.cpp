// Converts config fields to C++ and to text, and parses them.
#include "kernels/config_table.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <vector>

#include "base/nearest.h"

namespace rapt {

std::string config_word(int value) { return std::to_string(value); }
std::string config_word(int64_t value) { return std::to_string(value); }
std::string config_word(bool value) { return value ? "1" : "0"; }
std::string config_word(DType value) { return name_of(value); }
std::string config_code(int value) { return std::to_string(value); }
std::string config_code(int64_t value) { return std::to_string(value); }
std::string config_code(bool value) { return value ? "true" : "false"; }
std::string config_code(DType value) { return concat("rapt::DType::", name_of(value)); }

void parse_config_word(std::string_view field, std::string_view word, int& value) {
  int parsed = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), parsed);
  if (error != std::errc() || end != word.data() + word.size() || parsed < 0)
    invalid("config: ", field, " = ", word, ": must be a whole number from 0 to ", std::numeric_limits<int>::max());
  value = parsed;
}

void parse_config_word(std::string_view field, std::string_view word, bool& value) {
  if (word != "0" && word != "1") invalid("config: ", field, " = ", word, ": must be 0 or 1");
  value = word == "1";
}

void parse_config_word(std::string_view, std::string_view word, DType& value) {
  for (int i = 0; i < dtype_count; ++i)
    if (name_of(static_cast<DType>(i)) == word) {
      value = static_cast<DType>(i);
      return;
    }
  invalid("config: ", word, " is not a dtype");
}

namespace {

const ConfigField* find_field(const ConfigType& type, std::string_view name) {
  for (const ConfigField& field : type.fields)
    if (field.name == name) return &field;
  return nullptr;
}

[[noreturn]] void unknown_word(const ConfigType& type, std::string_view word) {
  std::vector<std::string_view> names;
  for (const ConfigField& field : type.fields) names.push_back(field.name);
  const std::string_view near = nearest(word.substr(0, word.find('=')), names);
  invalid("config: word ", word, ": must be FIELD=VALUE; fields that can be changed: ", tunable_fields(type),
          near.empty() ? "" : concat("; did you mean ", near, "?"));
}

}  // namespace

std::string tunable_fields(const ConfigType& type) {
  std::string list;
  for (const ConfigField& field : type.fields)
    if (field.role == ConfigRole::tunable) list += concat(list.empty() ? "" : ", ", field.name);
  return list;
}

std::string KernelConfig::words() const {
  std::string text;
  for (const ConfigField& field : type_->fields)
    text += concat(text.empty() ? "" : " ", field.name, "=", field.word(bytes_));
  return text;
}

std::string KernelConfig::words_unlike(const KernelConfig& other) const {
  std::string text;
  for (const ConfigField& field : type_->fields)
    if (const std::string word = field.word(bytes_); word != field.word(other.bytes_))
      text += concat(text.empty() ? "" : " ", field.name, "=", word);
  return text;
}

std::string KernelConfig::searched_words() const {
  std::string text;
  for (const ConfigField& field : type_->fields)
    if (!field.candidates.empty()) text += concat(text.empty() ? "" : " ", field.name, "=", field.word(bytes_));
  return text;
}

void KernelConfig::apply(std::string_view words) {
  while (!words.empty()) {
    const size_t end = std::min(words.find(' '), words.size());
    const std::string_view word = words.substr(0, end);
    words.remove_prefix(std::min(end + 1, words.size()));
    if (word.empty()) continue;
    const size_t equals = word.find('=');
    const ConfigField* field = equals == std::string_view::npos ? nullptr : find_field(*type_, word.substr(0, equals));
    if (field == nullptr) unknown_word(*type_, word);
    field->assign(bytes_, field->name, word.substr(equals + 1));
  }
}

std::string KernelConfig::word(std::string_view field) const {
  const ConfigField* const found = find_field(*type_, field);
  return found == nullptr ? "" : found->word(bytes_);
}

int64_t KernelConfig::number(std::string_view field, int64_t otherwise) const {
  const ConfigField* const found = find_field(*type_, field);
  return found == nullptr ? otherwise : found->number(bytes_);
}

std::string emit_unit(const char* file, const char* function, const ConfigType& type, const void* config,
                      const char* params, const char* min_blocks) {
  std::string assignments;
  for (const ConfigField& field : type.fields) assignments += concat(" c.", field.name, " = ", field.code(config), ";");
  return concat("#include \"", file, "\"\ninline constexpr rapt::", type.name, " cfg = [] {\n  rapt::", type.name,
                " c;\n ", assignments,
                "\n  return c;\n}();\nextern \"C\" __global__ void __launch_bounds__(cfg.threads()",
                *min_blocks == '\0' ? "" : ", ", min_blocks, ") rapt_kernel(const __grid_constant__ rapt::", params,
                " p) { rapt::", function, "<cfg>(p); }\n");
}

}  // namespace rapt
