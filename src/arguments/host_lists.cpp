// Converts lists between i32 and i64.
#include "arguments/host_lists.h"

#include <limits>

#include "arguments/tensor_rules.h"
#include "base/error.h"

namespace rapt {

HostList::HostList(const char* name, const rapt_tensor* list, rapt_dtype dtype) : list_(list) {
  if (list == nullptr || list->dtype == dtype) return;
  const int64_t stride = strides_of(*list)[0], count = list->shape[0];
  for (int64_t i = 0; i < count; ++i) {
    if (dtype == RAPT_I64) {
      wide_.push_back(static_cast<const int32_t*>(list->data)[i * stride]);
      continue;
    }
    const int64_t value = static_cast<const int64_t*>(list->data)[i * stride];
    if (value < std::numeric_limits<int32_t>::min() || value > std::numeric_limits<int32_t>::max())
      invalid(name, "[", i, "] = ", value, ": must fit into 32 bits");
    narrow_.push_back(static_cast<int32_t>(value));
  }
  converted_ = *list;
  converted_.dtype = dtype;
  converted_.strides = nullptr;
  converted_.data = dtype == RAPT_I64 ? static_cast<void*>(wide_.data()) : static_cast<void*>(narrow_.data());
  list_ = &converted_;
}

}  // namespace rapt
