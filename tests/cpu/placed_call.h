// A problem's call with its tensors in the memory of GPU 0, for tests with the stand-in driver.
#pragma once

#include <optional>
#include <string>

#include "check/device_tensors.h"
#include "cuda/cuda.h"
#include "support.h"

namespace rapt::test {

struct PlacedCall {
  Call call;
  std::optional<check::DeviceCall> device;

  explicit PlacedCall(const std::string& line) : call(make(line)) {
    const cuda::ContextScope scope(0, nullptr);
    call.out = check::make_outputs(call.problem);
    device.emplace(0, call.problem, call.in, call.out);
  }
  rapt_sdpa_args& args() { return device->args(); }
  rapt_status enqueue(rapt_context& context, void* stream) { return rapt_sdpa(&context, &args(), stream); }
};

}  // namespace rapt::test
