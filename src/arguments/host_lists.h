// Lists of lengths and positions in host memory, in the dtype that kernels read. CPU calls accept i32 and i64 lists,
// because NumPy and PyTorch make i64 lists by default. Used by sdpa.cpp and quantize.cpp.
#pragma once

#include <cstdint>
#include <vector>

#include "rapt/rapt.h"

namespace rapt {

// The given list (an index array: lengths or positions), or a converted copy. Throws if an i64 value does not fit in
// i32.
class HostList {
 public:
  // dtype: the one that the reader needs, RAPT_I32 or RAPT_I64. `list` may be null; its shape must have been checked.
  HostList(const char* name, const rapt_tensor* list, rapt_dtype dtype);
  HostList(const HostList&) = delete;
  HostList& operator=(const HostList&) = delete;

  const rapt_tensor* get() const { return list_; }

 private:
  const rapt_tensor* list_;
  rapt_tensor converted_{};
  std::vector<int32_t> narrow_;
  std::vector<int64_t> wide_;
};

}  // namespace rapt
