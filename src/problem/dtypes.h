// Dtypes: a set of DType, for rules and error sentences about problems and arguments. Used in problem/, arguments/,
// operations/ and the lab.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "kernels/shared/dtype.h"

namespace rapt {

static_assert(name_of(static_cast<DType>(dtype_count - 1)) != nullptr, "every number has its name in dtype.h");

class Dtypes {
 public:
  constexpr Dtypes(std::initializer_list<DType> dtypes) {
    for (const DType dtype : dtypes) bits_ |= bit(dtype);
  }
  // The dtypes for which `wanted` returns true.
  constexpr explicit Dtypes(bool (*wanted)(DType)) {
    for (int t = 0; t < dtype_count; ++t)
      if (wanted(static_cast<DType>(t))) bits_ |= bit(static_cast<DType>(t));
  }
  constexpr bool has(DType dtype) const { return (bits_ & bit(dtype)) != 0; }
  constexpr int count() const { return __builtin_popcount(bits_); }

  // Returns the dtype of the set with this name, or DType::none.
  constexpr DType named(std::string_view name) const {
    for (int t = 0; t < dtype_count; ++t)
      if (has(static_cast<DType>(t)) && name == name_of(static_cast<DType>(t))) return static_cast<DType>(t);
    return DType::none;
  }
  // Returns the names, in the order of DType: "e4m3, e5m2 or sim8". last: the text before the last name.
  std::string names(std::string_view last = " or ") const {
    std::string text;
    for (int t = 0, left = count(); t < dtype_count; ++t) {
      if (!has(static_cast<DType>(t))) continue;
      if (!text.empty()) text += left == 1 ? last : ", ";
      text += name_of(static_cast<DType>(t));
      --left;
    }
    return text;
  }

 private:
  static constexpr unsigned bit(DType dtype) { return 1u << static_cast<unsigned>(dtype); }
  unsigned bits_ = 0;
};

inline constexpr Dtypes input_dtypes{is_attention_input}, fp8_dtypes{is_fp8};

}  // namespace rapt
