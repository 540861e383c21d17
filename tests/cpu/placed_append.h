// A call of rapt_kv_append with its tensors in the memory of GPU 0, for tests with the stand-in driver.
#pragma once

#include <deque>

#include "cuda/cuda.h"
#include "kv_append_call.h"

namespace rapt::test {

// The tensors of a call in the memory of the stand-in GPU.
class OnStandIn {
 public:
  explicit OnStandIn(const AppendCall& call)
      : args_(call, [this](const char*, const HostTensor& t) { return place(t); }) {}
  const rapt_kv_append_args& args() const { return args_.args; }

 private:
  check::Address place(const HostTensor& t) {
    const check::Span span = check::reach(t.shape, t.strides);
    const int64_t width = bytes_of(t.dtype), bytes = std::max<int64_t>((span.last - span.first + 1) * width, 1);
    cuda::Buffer& buffer = buffers_.emplace_back(static_cast<size_t>(bytes));
    if (t.size() > 0) buffer.upload(t.data() + span.first * width, static_cast<size_t>(bytes), 0);
    return {static_cast<std::byte*>(buffer.data()) - span.first * width, {RAPT_DEVICE_CUDA, 0}};
  }

  std::deque<cuda::Buffer> buffers_;
  AppendArgs args_;
};

}  // namespace rapt::test
