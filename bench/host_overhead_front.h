// The C++ front for host_overhead.cpp, apart from it: rapt.hpp and the library's internals share names.
// Called by host_overhead.cpp.
#pragma once

#include <array>
#include <cstdint>
#include <functional>

namespace rapt::bench {

// rapt::sdpa on f16 tensors q, k, v, out of one shape on GPU 0, made anew in each call as an application would.
std::function<void()> front_call(const std::array<void*, 4>& data, const std::array<int64_t, 4>& shape, void* stream);

}  // namespace rapt::bench
