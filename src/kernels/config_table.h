// KernelConfig: a kernel configuration of any type with a table of its fields. The table produces the translation unit,
// the text form ("block_m=64 stages=2"), and the parser of --config.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "kernels/shared/dtype.h"

namespace rapt {

// computed: the field follows from the problem; --config cannot change it. tunable: it only affects how the problem is
// computed; --config may change it.
enum class ConfigRole : unsigned char { computed, tunable };

// One field of any type. The functions receive a pointer to the whole configuration.
struct ConfigField {
  std::string_view name;
  ConfigRole role;
  std::string (*word)(const void* config);                                      // "1", "f16"
  std::string (*code)(const void* config);                                      // "true", "rapt::DType::f16"
  int64_t (*number)(const void* config);                                        // value of an int or bool field; else 0
  void (*assign)(void* config, std::string_view field, std::string_view word);  // throws Error
  std::span<const int> candidates = {};  // the values that `rapt tune` tries, in increasing order; empty: not searched
};

struct ConfigType {
  const char* name;  // name of the C++ type: "Sm80Config"
  std::span<const ConfigField> fields;
  bool (*equal)(const void*, const void*);
  void (*set_defaults)(void*);
};

// A list for messages: "block_m, warps_m, min_blocks".
std::string tunable_fields(const ConfigType& type);

// Converters between field values and text. A family adds overloads for its own enumerations.
std::string config_word(int value);
std::string config_word(int64_t value);
std::string config_word(bool value);
std::string config_word(DType value);
std::string config_code(int value);
std::string config_code(int64_t value);
std::string config_code(bool value);
std::string config_code(DType value);
void parse_config_word(std::string_view field, std::string_view word, int& value);
void parse_config_word(std::string_view field, std::string_view word, bool& value);
void parse_config_word(std::string_view field, std::string_view word, DType& value);
template <class Value>
void parse_config_word(std::string_view field, std::string_view word, Value&) {
  invalid("config: ", field, " = ", word, ": cannot be changed");
}

template <auto... values>
inline constexpr std::array<int, sizeof...(values)> config_candidates = {static_cast<int>(values)...};

// One row of a table: config_field<Sm80Config, &Sm80Config::stages, 1, 2, 3>("stages", ConfigRole::tunable). The values
// after the member are the candidates that `rapt tune` tries. They have the type of the member: int or bool.
template <class Config, auto member, auto... candidates>
constexpr ConfigField config_field(std::string_view name, ConfigRole role = ConfigRole::computed) {
  using Member = std::remove_cvref_t<decltype(std::declval<Config>().*member)>;
  static_assert((std::is_same_v<decltype(candidates), Member> && ...), "a candidate has the type of the field");
  return {name,
          role,
          [](const void* config) { return config_word(static_cast<const Config*>(config)->*member); },
          [](const void* config) { return config_code(static_cast<const Config*>(config)->*member); },
          [](const void* config) {
            using Value = std::remove_cvref_t<decltype(static_cast<const Config*>(config)->*member)>;
            if constexpr (std::is_integral_v<Value>)
              return static_cast<int64_t>(static_cast<const Config*>(config)->*member);
            return int64_t{0};
          },
          [](void* config, std::string_view field, std::string_view word) {
            parse_config_word(field, word, static_cast<Config*>(config)->*member);
          },
          config_candidates<candidates...>};
}
template <class Config>
constexpr ConfigType config_type(const char* name, std::span<const ConfigField> fields) {
  return {name, fields,
          [](const void* a, const void* b) { return *static_cast<const Config*>(a) == *static_cast<const Config*>(b); },
          [](void* config) { new (config) Config(); }};
}

// A configuration in a plan. It is copied as plain bytes and allocates nothing.
class KernelConfig {
 public:
  static constexpr size_t max_bytes = 160;

  KernelConfig() = default;
  // Sets all fields to their defaults.
  explicit KernelConfig(const ConfigType& type) : type_(&type) { type.set_defaults(bytes_); }
  template <class Config>
  KernelConfig(const ConfigType& type, const Config& config) : type_(&type) {
    static_assert(std::is_trivially_copyable_v<Config> && sizeof(Config) <= max_bytes && alignof(Config) <= 8);
    std::memcpy(bytes_, &config, sizeof config);
  }
  // Config must be the type with which this object was made.
  template <class Config>
  const Config& as() const {
    return *reinterpret_cast<const Config*>(bytes_);
  }
  const ConfigType& type() const { return *type_; }
  const void* data() const { return bytes_; }
  void* data() { return bytes_; }

  // The configuration as text, all fields in order: "block_m=64 block_n=64 warps_m=4 ...".
  std::string words() const;
  // Sets the fields named in `words` ("block_m=32 q_in_registers=1"). Throws Error for an unknown field or a bad value.
  void apply(std::string_view words);
  // The fields with candidates, in the form that apply() takes. These are the fields that a search can change.
  std::string searched_words() const;
  // The fields whose values differ from those of `other`, which must have the same type.
  std::string words_unlike(const KernelConfig& other) const;
  // Return a field as text ("" if there is no such field) or as a number (`otherwise` if there is no such field).
  std::string word(std::string_view field) const;
  int64_t number(std::string_view field, int64_t otherwise = 0) const;

  bool operator==(const KernelConfig& other) const {
    return type_ == other.type_ && (type_ == nullptr || type_->equal(bytes_, other.bytes_));
  }

 private:
  const ConfigType* type_ = nullptr;
  alignas(8) std::byte bytes_[max_bytes];
};

// The text of a translation unit. It includes `file` and defines the kernel rapt_kernel, which calls
// rapt::`function`<cfg>(const `params`&). min_blocks: an expression, also with cfg, the second argument of
// __launch_bounds__ (CTAs per SM); "": no second argument.
std::string emit_unit(const char* file, const char* function, const ConfigType& type, const void* config,
                      const char* params, const char* min_blocks = "cfg.min_blocks");

}  // namespace rapt
