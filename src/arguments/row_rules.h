// The rules that rows of sdpa_arguments.h state, checked for one call: dtypes, device, shapes, ranges of values.
// Used by arguments.cpp, which has the rules that join several arguments. Throws Error naming argument, value, rule.
#pragma once

#include <array>
#include <cstdint>

#include "arguments/sdpa_arguments.h"

namespace rapt {

// The sizes of one call, each with the tensor that has it first.
class Sizes {
 public:
  bool knows(Dim dim) const { return from_[index(dim)] != nullptr; }
  int64_t operator[](Dim dim) const { return sizes_[index(dim)]; }
  const char* from(Dim dim) const { return from_[index(dim)]; }
  void set(Dim dim, int64_t size, const char* from) { sizes_[index(dim)] = size, from_[index(dim)] = from; }

 private:
  static size_t index(Dim dim) { return static_cast<size_t>(dim); }

  std::array<int64_t, static_cast<size_t>(Dim::count)> sizes_{};
  std::array<const char*, static_cast<size_t>(Dim::count)> from_{};
};

// Each tensor by itself and against q's device and the sizes; `sizes` learns those that it does not know yet. The
// shapes of scales are left to who knows their kinds.
void check_tensor_rows(const rapt_sdpa_args& args, bool packed, Sizes& sizes);
// Each value that is given.
void check_scalar_rows(const rapt_sdpa_args& args);

}  // namespace rapt
