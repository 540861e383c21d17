// The configuration of a kernel as a value of any type, with a table of its fields: from the table come the text of its
// translation unit, its words ("block_m=64 stages=2"), and what --config changes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/error.h"
#include "kernels/shared/dtype.h"

namespace rapt {

// What a field says: how the problem is computed, which --config may change, or what is computed, which it may not.
enum class ConfigRole : unsigned char { computed, tunable };

// One field, whatever its type. Pointers are to the whole configuration.
struct ConfigField {
  std::string_view name;
  ConfigRole role;
  std::string (*word)(const void* config);                                      // "1", "f16"
  std::string (*code)(const void* config);                                      // "true", "rapt::DType::f16"
  int64_t (*number)(const void* config);                                        // of int and bool; else 0
  void (*assign)(void* config, std::string_view field, std::string_view word);  // throws Error
};

struct ConfigType {
  const char* name;  // of the C++ type, "Sm80Config"
  std::span<const ConfigField> fields;
  bool (*equal)(const void*, const void*);
  void (*set_defaults)(void*);
};

// "block_m, warps_m, min_blocks".
std::string tunable_fields(const ConfigType& type);

// How values of a field are written and read. An enumeration of a family brings its own overloads beside its table.
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

// A row of a family's table: config_field<Sm80Config, &Sm80Config::stages>("stages", ConfigRole::tunable).
template <class Config, auto member>
constexpr ConfigField config_field(std::string_view name, ConfigRole role = ConfigRole::computed) {
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
          }};
}
template <class Config>
constexpr ConfigType config_type(const char* name, std::span<const ConfigField> fields) {
  return {name, fields,
          [](const void* a, const void* b) { return *static_cast<const Config*>(a) == *static_cast<const Config*>(b); },
          [](void* config) { new (config) Config(); }};
}

// A configuration as plans carry it. Copies are plain bytes; nothing is allocated.
class KernelConfig {
 public:
  static constexpr size_t most_bytes = 160;

  KernelConfig() = default;
  // Every field with its default, to be changed by words.
  explicit KernelConfig(const ConfigType& type) : type_(&type) { type.set_defaults(bytes_); }
  template <class Config>
  KernelConfig(const ConfigType& type, const Config& config) : type_(&type) {
    static_assert(std::is_trivially_copyable_v<Config> && sizeof(Config) <= most_bytes && alignof(Config) <= 8);
    std::memcpy(bytes_, &config, sizeof config);
  }
  // Only the family that made it knows the type.
  template <class Config>
  const Config& as() const {
    return *reinterpret_cast<const Config*>(bytes_);
  }
  const ConfigType& type() const { return *type_; }
  const void* data() const { return bytes_; }
  void* data() { return bytes_; }

  // "block_m=64 block_n=64 warps_m=4 ...": every field, in order.
  std::string words() const;
  // Changes the fields that `words` names ("block_m=32 q_in_registers=1"). Throws Error naming an unknown field or
  // value.
  void apply(std::string_view words);
  // The words that `other`, a configuration of the same type, has otherwise.
  std::string words_unlike(const KernelConfig& other) const;
  // The word of a field, or its number; `otherwise` where the configuration has no such field.
  std::string word(std::string_view field) const;
  int64_t number(std::string_view field, int64_t otherwise = 0) const;

  bool operator==(const KernelConfig& other) const {
    return type_ == other.type_ && (type_ == nullptr || type_->equal(bytes_, other.bytes_));
  }

 private:
  const ConfigType* type_ = nullptr;
  alignas(8) std::byte bytes_[most_bytes];
};

// A unit that includes `file` and whose entry rapt_kernel calls rapt::`function`<cfg>(const `params`&). The blocks of a
// multiprocessor that bound the registers are `min_blocks`, an expression of cfg; "": the compiler decides.
std::string emit_unit(const char* file, const char* function, const ConfigType& type, const void* config,
                      const char* params, const char* min_blocks = "cfg.min_blocks");

}  // namespace rapt
