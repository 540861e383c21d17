// Dtypes: a set of DType, for the rules of arguments. Used by sdpa_arguments.h and tensor_rules.h.
#pragma once

#include <initializer_list>

#include "kernels/shared/dtype.h"

namespace rapt {

class Dtypes {
 public:
  constexpr Dtypes(std::initializer_list<DType> dtypes) {
    for (const DType dtype : dtypes) bits_ |= 1u << static_cast<unsigned>(dtype);
  }
  constexpr bool has(DType dtype) const { return (bits_ >> static_cast<unsigned>(dtype) & 1u) != 0; }

 private:
  unsigned bits_ = 0;
};

}  // namespace rapt
