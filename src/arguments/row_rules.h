// Checks the rules in the rows of sdpa_arguments.h for one call: dtypes, device, shapes, ranges of values. Used by
// arguments.cpp, which checks rules about several arguments. Throws Error with argument, value and rule.
#pragma once

#include <array>
#include <cstdint>

#include "arguments/sdpa_arguments.h"

namespace rapt {

// The sizes of the dimensions of one call. Each size is stored with the first argument that determines it.
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

// Checks each tensor alone, against q's device, and against the sizes. Adds unknown sizes to `sizes`. Does not check
// the shapes of scales, because they depend on the kinds of scales.
void check_tensor_rows(const rapt_sdpa_args& args, bool packed, Sizes& sizes);
// Checks each value that is given.
void check_scalar_rows(const rapt_sdpa_args& args);

}  // namespace rapt
