// A call whose tensors lie in memory that this process shares with one that it starts, so that what runs there can
// crash without harm. Used by emulate.cpp; assumes POSIX.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <string>

#include "check/tensor.h"

namespace rapt::lab {

// All tensors of one call in shared memory, with bytes 0xff around each: NaN to who reads them.
class SharedCall {
 public:
  // The host tensors must outlive it.
  SharedCall(const Problem& problem, const check::Inputs& inputs, const check::Outputs& outputs);
  ~SharedCall();
  SharedCall(const SharedCall&) = delete;
  SharedCall& operator=(const SharedCall&) = delete;

  const rapt_sdpa_args& args() const { return call_->args; }
  // Throws Error{internal} naming the tensor where an input, or memory around a tensor, is no longer what it was.
  void require_untouched() const;
  // Results into the host's outputs, the gaps of their strides included.
  void copy_back() const;

 private:
  struct Placed {
    const char* name;
    std::byte* host;      // the first reachable byte
    size_t begin, bytes;  // of the tensor within the memory
    std::byte* memory;
    size_t memory_bytes;

    bool is_output() const;
  };
  check::Address place(const char* name, const check::HostTensor& tensor);

  std::deque<Placed> placed_;
  std::optional<check::SdpaCall> call_;
};

// Runs work() in a process of its own. "" or how that ended otherwise, with what it printed to stderr. work() must not
// throw, and may use so much time of the CPU.
std::string run_apart(const std::function<void()>& work, unsigned seconds);

}  // namespace rapt::lab
