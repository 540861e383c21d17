// PlacedTensors: the tensors of one call in GPU memory, with bytes of 0xff around each. ChangingTensor: a tensor whose
// contents change between calls. Used by tests of operations that DeviceCall does not know, and of paged caches.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <vector>

#include "../cpu/quantize_call.h"
#include "gpu_support.h"

namespace rapt::test {

// Used in a ContextScope of GPU 0.
class PlacedTensors {
 public:
  explicit PlacedTensors(size_t guard_bytes) : guard_bytes_(guard_bytes) {}
  PlacedTensors(const PlacedTensors&) = delete;
  PlacedTensors& operator=(const PlacedTensors&) = delete;

  check::Placement placement() {
    return [this](const char*, const HostTensor& tensor) { return place(tensor); };
  }
  // Copies all tensors back to the host, also inputs, to check that they are unchanged. The work must be finished.
  void download() {
    for (const Placed& placed : placed_) {
      std::vector<std::byte> bytes(placed.buffer.bytes());
      placed.buffer.download(bytes.data(), bytes.size());
      for (size_t i = 0; i < bytes.size(); ++i) {
        const bool inside = i >= placed.begin && i < placed.begin + placed.bytes;
        if (inside) continue;
        ASSERT_EQ(bytes[i], std::byte{0xff}) << "written at byte " << i << " of a tensor in [" << placed.begin << ", "
                                             << placed.begin + placed.bytes << ")";
      }
      std::memcpy(placed.host, bytes.data() + placed.begin, placed.bytes);
    }
  }

 private:
  struct Placed {
    std::byte* host;
    size_t begin, bytes;
    cuda::Buffer buffer;
  };

  check::Address place(const HostTensor& tensor) {
    const check::Span span = check::reach(tensor.shape, tensor.strides);
    const int64_t width = bytes_of(tensor.dtype);
    std::byte* host = tensor.data() + span.first * width;
    const auto bytes = static_cast<size_t>(std::max<int64_t>(span.last - span.first + 1, 0) * width);
    const size_t begin = guard_bytes_ + reinterpret_cast<uintptr_t>(host) % 64;  // the host's alignment
    Placed& placed = placed_.emplace_back(
        Placed{host, begin, bytes, cuda::Buffer(std::max<size_t>(begin + bytes + guard_bytes_, 1))});
    placed.buffer.fill(0xff);
    if (bytes > 0) placed.buffer.upload(host, bytes, begin);
    return {static_cast<std::byte*>(placed.buffer.data()) + begin - span.first * width, {RAPT_DEVICE_CUDA, 0}};
  }

  size_t guard_bytes_;
  std::deque<Placed> placed_;
};

// A contiguous tensor in GPU memory whose contents the host changes between calls or replays.
struct ChangingTensor {
  const HostTensor& host;
  cuda::Buffer buffer;
  rapt_tensor tensor;

  // view: a view of the host's tensor. `tensor` differs from it in address and device.
  ChangingTensor(const HostTensor& of, const rapt_tensor& view)
      : host(of), buffer(static_cast<size_t>(of.size() * bytes_of(of.dtype))), tensor(view) {
    tensor.data = buffer.data(), tensor.device = first_gpu;
  }
  void upload() { buffer.upload(host.data(), buffer.bytes(), 0); }
};

}  // namespace rapt::test
