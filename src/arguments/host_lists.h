// Lists of lengths and positions in host memory, in the one dtype that kernels read. CPU calls accept i32 and i64 for
// each list, since NumPy and PyTorch make i64 ones by default. Used by sdpa.cpp and quantize.cpp.
#pragma once

#include <cstdint>
#include <vector>

#include "rapt/rapt.h"

namespace rapt {

// A list as it is, or a converted copy. An i64 value that i32 cannot hold is an error.
class HostList {
 public:
  // dtype: RAPT_I32 or RAPT_I64, what the reader needs. `list` may be null, and has passed the rules of its shape.
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
