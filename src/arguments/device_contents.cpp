// Copies contents to the host and checks them; see device_contents.h and host_copies.h.
#include "arguments/device_contents.h"

#include "arguments/arguments.h"
#include "arguments/host_copies.h"
#include "arguments/sdpa_arguments.h"
#include "arguments/tensor_rules.h"
#include "base/error.h"
#include "cuda/cuda.h"

namespace rapt {
const rapt_tensor* HostCopies::of(const rapt_tensor* tensor) {
  if (tensor == nullptr || element_count(*tensor) == 0) return tensor;
  const auto strides = strides_of(*tensor);
  int64_t lowest = 0, highest = 0;
  for (int i = 0; i < tensor->rank; ++i) {
    const int64_t reach = (tensor->shape[i] - 1) * strides[static_cast<size_t>(i)];
    (reach < 0 ? lowest : highest) += reach;
  }
  const int64_t width = bytes_of(dtype_of(*tensor));
  std::vector<std::byte>& bytes = storage_.emplace_back(static_cast<size_t>((highest - lowest + 1) * width));
  cuda::copy_to_host(bytes.data(), static_cast<const std::byte*>(tensor->data) + lowest * width, bytes.size(), stream_);
  rapt_tensor& copy = views_.emplace_back(*tensor);
  copy.data = bytes.data() - lowest * width;
  return &copy;
}

void check_device_contents(const rapt_sdpa_args& args, const Problem& problem, void* stream) {
  if (cuda::is_capturing(stream))
    invalid("flags = RAPT_CHECK_CONTENTS: cannot read contents while stream ", stream, " is being captured");
  HostCopies copies(stream);
  rapt_sdpa_args host = args;
  for (const TensorArgument& argument : tensor_arguments)
    if (argument.has_checked_contents()) host.*argument.member = copies.of(args.*argument.member);
  check_contents(host, problem);
}

}  // namespace rapt
