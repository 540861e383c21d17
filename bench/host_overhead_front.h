// The C++ API call for host_overhead.cpp, in a separate file because rapt.hpp and the library's internals share names.
// Called by host_overhead.cpp.
#pragma once

#include <array>
#include <cstdint>
#include <functional>

namespace rapt::bench {

// rapt::sdpa on f16 tensors q, k, v, out of one shape on GPU 0. Creates the tensors in each call, like an application.
std::function<void()> front_call(const std::array<void*, 4>& data, const std::array<int64_t, 4>& shape, void* stream);

}  // namespace rapt::bench
