// DeviceCall: all tensors of one call in the memory of a GPU, with guards around each, and the rapt_sdpa_args over
// them. Used by library.cpp, the lab and tests/gpu. It is this code that copies, never the library.
#pragma once

#include <deque>
#include <optional>

#include "cuda/cuda.h"
#include "tensor.h"

namespace rapt::check {

class DeviceCall {
 public:
  // Bytes on each side of a tensor. They are 0xff, a NaN in every float format and -1 in whole numbers, so that what is
  // read beyond a tensor shows in the result. 0: none, so that a memory checker sees where each allocation ends.
  static constexpr size_t usual_guard_bytes = 4096;

  // Allocates and uploads, the gaps of strides and the poison of outputs (of make_outputs) included; addresses keep the
  // host's alignment up to 64 bytes. Made, used and destroyed in a ContextScope of the GPU; the host tensors must
  // outlive it.
  DeviceCall(int device_index, const Problem& problem, const Inputs& inputs, const Outputs& outputs,
             size_t guard_bytes = usual_guard_bytes);
  DeviceCall(const DeviceCall&) = delete;
  DeviceCall& operator=(const DeviceCall&) = delete;

  rapt_sdpa_args& args() { return call_->args; }
  const rapt_sdpa_args& args() const { return call_->args; }

  // The host's present contents, those of the outputs included.
  void upload();
  // Throws Error{internal} naming the tensor where an input, or a guard of any tensor, is no longer what it was.
  void require_untouched() const;
  // Results into the host's outputs, the gaps of their strides included.
  void download() const;

 private:
  struct Placed {
    const char* name;
    const HostTensor* host;
    size_t begin, bytes;  // of the reachable elements within the buffer
    cuda::Buffer buffer;

    bool is_output() const;
    std::byte* host_begin() const;
    // Whether `count` bytes from `offset` on are those at `expected`, or guards where that is null.
    bool holds(size_t offset, const std::byte* expected, size_t count) const;
  };
  Address place(const char* name, const HostTensor& tensor);

  int device_index_;
  size_t guard_bytes_;
  std::deque<Placed> placed_;
  std::optional<SdpaCall> call_;
};

}  // namespace rapt::check
