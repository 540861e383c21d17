// One table of the fields of AttentionConfig: written as C++, written as words, read from words.
#include "kernels/emit.h"

#include <algorithm>
#include <charconv>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/nearest.h"
#include "kernels/config_rules.h"

namespace rapt {
namespace {

using Member = std::variant<int AttentionConfig::*, bool AttentionConfig::*, DType AttentionConfig::*>;
struct Field {
  std::string_view name;
  Member member;
};

// In the order of declaration, which designated initialisers ask for.
constexpr Field fields[] = {
    {"q", &AttentionConfig::q},
    {"k", &AttentionConfig::k},
    {"v", &AttentionConfig::v},
    {"out", &AttentionConfig::out},
    {"head_dim", &AttentionConfig::head_dim},
    {"head_dim_v", &AttentionConfig::head_dim_v},
    {"block_m", &AttentionConfig::block_m},
    {"block_n", &AttentionConfig::block_n},
    {"warps_m", &AttentionConfig::warps_m},
    {"warps_k", &AttentionConfig::warps_k},
    {"stages", &AttentionConfig::stages},
    {"q_in_registers", &AttentionConfig::q_in_registers},
    {"min_blocks", &AttentionConfig::min_blocks},
    {"folded", &AttentionConfig::folded},
    {"softcap", &AttentionConfig::softcap},
    {"bias", &AttentionConfig::bias},
    {"alibi", &AttentionConfig::alibi},
    {"mask", &AttentionConfig::mask},
    {"bounded", &AttentionConfig::bounded},
    {"programmatic", &AttentionConfig::programmatic},
    {"f16_accumulate", &AttentionConfig::f16_accumulate},
    {"fp8_scores", &AttentionConfig::fp8_scores},
    {"fp8_values", &AttentionConfig::fp8_values},
    {"p_terms", &AttentionConfig::p_terms},
    {"row_scales", &AttentionConfig::row_scales},
    {"key_scales", &AttentionConfig::key_scales},
    {"value_scales", &AttentionConfig::value_scales},
    {"channel_scales", &AttentionConfig::channel_scales},
    {"key_mean", &AttentionConfig::key_mean},
    {"flush_keys", &AttentionConfig::flush_keys},
};

DType dtype_called(std::string_view text) {
  for (int i = 0; i <= static_cast<int>(DType::i64); ++i)
    if (name_of(static_cast<DType>(i)) == text) return static_cast<DType>(i);
  invalid("config: ", text, " is not a dtype");
}

int integer(std::string_view field, std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0)
    invalid("config: ", field, " = ", text, ": must be a whole number");
  return value;
}

struct Value {  // of one field, as text
  const AttentionConfig& config;
  bool as_code;
  std::string operator()(int AttentionConfig::*m) const { return std::to_string(config.*m); }
  std::string operator()(bool AttentionConfig::*m) const {
    return as_code ? (config.*m ? "true" : "false") : (config.*m ? "1" : "0");
  }
  std::string operator()(DType AttentionConfig::*m) const {
    return concat(as_code ? "rapt::DType::" : "", name_of(config.*m));
  }
};

struct Assign {
  AttentionConfig& config;
  std::string_view field, text;
  void operator()(int AttentionConfig::*m) const { config.*m = integer(field, text); }
  void operator()(bool AttentionConfig::*m) const {
    if (text != "0" && text != "1") invalid("config: ", field, " = ", text, ": must be 0 or 1");
    config.*m = text == "1";
  }
  void operator()(DType AttentionConfig::*m) const { config.*m = dtype_called(text); }
};

void assign(std::string_view word, AttentionConfig& config) {
  const size_t equals = word.find('=');
  std::string known;
  for (const Field& field : fields) {
    known += concat(known.empty() ? "" : ", ", field.name);
    if (equals != std::string_view::npos && field.name == word.substr(0, equals))
      return std::visit(Assign{config, field.name, word.substr(equals + 1)}, field.member);
  }
  std::vector<std::string_view> names;
  for (const Field& field : fields) names.push_back(field.name);
  const std::string_view near = nearest(word.substr(0, equals), names);
  invalid("config: word ", word, ": must be FIELD=VALUE with a field of ", known,
          near.empty() ? "" : concat("; did you mean ", near, "?"));
}

}  // namespace

std::string emit_unit(const char* file, const char* function, const AttentionConfig& config, const char* params) {
  std::string value;
  for (const Field& field : fields)
    value += concat(value.empty() ? "" : ", ", ".", field.name, " = ", std::visit(Value{config, true}, field.member));
  return concat("#include \"", file, "\"\nconstexpr rapt::AttentionConfig cfg{", value,
                "};\nextern \"C\" __global__ void __launch_bounds__(cfg.threads(), cfg.min_blocks) "
                "rapt_kernel(const __grid_constant__ rapt::",
                params, " p) { rapt::", function, "<cfg>(p); }\n");
}

std::string to_string(const AttentionConfig& config) {
  std::string words;
  for (const Field& field : fields)
    words += concat(words.empty() ? "" : " ", field.name, "=", std::visit(Value{config, false}, field.member));
  return words;
}

void require_planned(const char* family, const ConfigChange& change, std::initializer_list<std::string_view> free) {
  for (const Field& field : fields) {
    if (std::find(free.begin(), free.end(), field.name) != free.end()) continue;
    const std::string now = std::visit(Value{change.changed, false}, field.member);
    const std::string planned = std::visit(Value{change.chosen, false}, field.member);
    if (now == planned) continue;
    std::string list;
    for (const std::string_view name : free) list += concat(list.empty() ? "" : ", ", name);
    invalid("config: ", field.name, " = ", now, ": must be ", planned, ", as ", family,
            " computes this problem; what may be changed: ", list);
  }
}

void apply_words(std::string_view words, AttentionConfig& config) {
  while (!words.empty()) {
    const size_t end = std::min(words.find(' '), words.size());
    if (end > 0) assign(words.substr(0, end), config);
    words.remove_prefix(std::min(end + 1, words.size()));
  }
}

}  // namespace rapt
