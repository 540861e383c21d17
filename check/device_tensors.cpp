// DeviceCall: places each tensor in device memory, and checks after a call which memory changed.
// Called by library.cpp, the lab and tests/gpu. Every copy is synchronous.
#include "device_tensors.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "poison.h"

namespace rapt::check {
namespace {

constexpr unsigned char guard_byte = 0xff;
constexpr size_t alignment = 64;
constexpr size_t chunk_bytes = size_t{16} << 20;  // memory is compared in chunks of this size

}  // namespace

bool DeviceCall::Placed::is_output() const {
  return std::string_view(name) == "out" || std::string_view(name) == "lse";
}

std::byte* DeviceCall::Placed::host_begin() const {
  return host->data() + reach(host->shape, host->strides).first * bytes_of(host->dtype);
}

bool DeviceCall::Placed::holds(size_t offset, const std::byte* expected, size_t count) const {
  std::vector<std::byte> chunk(std::min(count, chunk_bytes));
  for (size_t done = 0; done < count; done += chunk.size()) {
    chunk.resize(std::min(count - done, chunk_bytes));
    buffer.download(chunk.data(), chunk.size(), offset + done);
    const bool same = expected != nullptr ? std::memcmp(chunk.data(), expected + done, chunk.size()) == 0
                                          : std::all_of(chunk.begin(), chunk.end(),
                                                        [](std::byte b) { return b == std::byte{guard_byte}; });
    if (!same) return false;
  }
  return true;
}

DeviceCall::DeviceCall(int device_index, const Problem& problem, const Inputs& inputs, const Outputs& outputs,
                       size_t guard_bytes)
    : device_index_(device_index), guard_bytes_(guard_bytes) {
  call_.emplace(problem, inputs, outputs,
                [this](const char* name, const HostTensor& tensor) { return place(name, tensor); });
  upload();
}

Address DeviceCall::place(const char* name, const HostTensor& tensor) {
  const Span span = reach(tensor.shape, tensor.strides);
  const auto width = static_cast<int64_t>(bytes_of(tensor.dtype));
  Placed placed{.name = name, .host = &tensor, .begin = 0, .bytes = 0, .buffer = {}};
  placed.bytes = static_cast<size_t>((span.last - span.first + 1) * width);
  placed.begin = guard_bytes_ + reinterpret_cast<uintptr_t>(placed.host_begin()) % alignment;
  placed.buffer = cuda::Buffer(std::max<size_t>(placed.begin + placed.bytes + guard_bytes_, 1));
  auto* first = static_cast<std::byte*>(placed.buffer.data()) + placed.begin;
  placed_.push_back(std::move(placed));
  return {first - span.first * width, {RAPT_DEVICE_CUDA, device_index_}};
}

void DeviceCall::upload() {
  for (Placed& placed : placed_) {
    placed.buffer.fill(guard_byte);
    if (placed.bytes > 0) placed.buffer.upload(placed.host_begin(), placed.bytes, placed.begin);
  }
}

void DeviceCall::require_untouched() const {
  for (const Placed& placed : placed_) {
    const size_t end = placed.begin + placed.bytes;
    if (!placed.holds(0, nullptr, placed.begin) || !placed.holds(end, nullptr, placed.buffer.bytes() - end))
      throw Error(ErrorCode::internal, concat(placed.name, ": the kernel wrote to memory around the tensor"));
    if (!placed.is_output() && !placed.holds(placed.begin, placed.host_begin(), placed.bytes))
      throw Error(ErrorCode::internal, concat(placed.name, ": the kernel wrote to this input"));
  }
}

void DeviceCall::download() const {
  for (const Placed& placed : placed_)
    if (placed.is_output() && placed.bytes > 0) placed.buffer.download(placed.host_begin(), placed.bytes, placed.begin);
}

}  // namespace rapt::check
