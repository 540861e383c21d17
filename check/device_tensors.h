// DeviceCall: all tensors of one call in GPU memory, with guard bytes around each tensor, and their rapt_sdpa_args.
// Used by library.cpp, the lab and tests/gpu. DeviceCall makes all copies itself, and does not use the library for
// them.
#pragma once

#include <deque>
#include <optional>

#include "cuda/cuda.h"
#include "tensor.h"

namespace rapt::check {

class DeviceCall {
 public:
  // The number of guard bytes on each side of a tensor. They are 0xff: NaN in every float format and -1 in integers. So
  // a read outside a tensor changes the result. With 0 there are no guards, so a memory checker sees the end of each
  // tensor.
  static constexpr size_t usual_guard_bytes = 4096;

  // Allocates memory and uploads the tensors, including the gaps between strided elements and the poison of the outputs
  // (which must come from make_outputs). Device addresses have the alignment of the host addresses, up to 64 bytes.
  // Create, use and destroy a DeviceCall in a ContextScope of the GPU. The host tensors must outlive it.
  DeviceCall(int device_index, const Problem& problem, const Inputs& inputs, const Outputs& outputs,
             size_t guard_bytes = usual_guard_bytes);
  DeviceCall(const DeviceCall&) = delete;
  DeviceCall& operator=(const DeviceCall&) = delete;

  rapt_sdpa_args& args() { return call_->args; }
  const rapt_sdpa_args& args() const { return call_->args; }

  // Uploads the current host contents, including the outputs.
  void upload();
  // Throws Error{internal} with the tensor's name if an input, or a guard of any tensor, has changed.
  void require_untouched() const;
  // Copies the results to the host's outputs, including the gaps of their strides.
  void download() const;

 private:
  struct Placed {
    const char* name;
    const HostTensor* host;
    size_t begin, bytes;  // where the reachable elements begin within the buffer, and their size
    cuda::Buffer buffer;

    bool is_output() const;
    std::byte* host_begin() const;
    // True if `count` bytes from `offset` on are equal to the bytes at `expected`. If `expected` is null, they must be
    // guard bytes.
    bool holds(size_t offset, const std::byte* expected, size_t count) const;
  };
  Address place(const char* name, const HostTensor& tensor);

  int device_index_;
  size_t guard_bytes_;
  std::deque<Placed> placed_;
  std::optional<SdpaCall> call_;
};

}  // namespace rapt::check
