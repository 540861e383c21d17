// The C++ API call for host_overhead.cpp, in a separate file because rapt.hpp and the library's internals share names.
// Called by host_overhead.cpp.
#pragma once

#include <array>
#include <cstdint>
#include <functional>

namespace rapt::bench {

// Returns a function that calls rapt::sdpa on f16 tensors q, k, v and out, which have the same shape, on GPU 0. It
// creates the tensor structs in each call, as an application does.
std::function<void()> front_call(const std::array<void*, 4>& data, const std::array<int64_t, 4>& shape, void* stream);

}  // namespace rapt::bench
