// The C++ API call of host_overhead_front.h. Called by host_overhead.cpp. It includes only rapt.hpp.
#include "host_overhead_front.h"

#include "rapt/rapt.hpp"

namespace rapt::bench {

std::function<void()> front_call(const std::array<void*, 4>& data, const std::array<int64_t, 4>& shape, void* stream) {
  const auto tensor = [shape](void* at) { return Tensor(at, Type::f16, Dims(shape), {}, cuda_device(0)); };
  return [=] { sdpa(tensor(data[0]), tensor(data[1]), tensor(data[2]), tensor(data[3]), {.stream = stream}); };
}

}  // namespace rapt::bench
