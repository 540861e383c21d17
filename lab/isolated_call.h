// Runs a function in a child process. The call's tensors are in memory shared with the child, so a crash there does not
// harm this process. Used by emulate.cpp. Requires POSIX.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <string>

#include "check/tensor.h"

namespace rapt::lab {

// All tensors of one call in shared memory. Around each tensor there are bytes 0xff, so a read outside the tensor gives
// NaN.
class SharedCall {
 public:
  // The host tensors must outlive this object.
  SharedCall(const Problem& problem, const check::Inputs& inputs, const check::Outputs& outputs);
  ~SharedCall();
  SharedCall(const SharedCall&) = delete;
  SharedCall& operator=(const SharedCall&) = delete;

  const rapt_sdpa_args& args() const { return call_->args; }
  // Throws Error{internal} with a tensor's name if an input or the memory around a tensor was changed.
  void require_untouched() const;
  // Copies the results to the host's outputs, including the gaps of their strides.
  void copy_back() const;

 private:
  struct Placed {
    const char* name;
    std::byte* host;      // the first reachable byte
    size_t begin, bytes;  // place and size of the tensor within `memory`
    std::byte* memory;
    size_t memory_bytes;

    bool is_output() const;
  };
  check::Address place(const char* name, const check::HostTensor& tensor);

  std::deque<Placed> placed_;
  std::optional<check::SdpaCall> call_;
};

// Runs work() in a child process. Returns "" on success. Otherwise returns how the child ended and the text that it
// printed to stderr. work() must not throw. `seconds` limits the child's CPU time; 0 means no limit.
std::string run_in_child(const std::function<void()>& work, unsigned seconds);

}  // namespace rapt::lab
