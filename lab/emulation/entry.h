// The function through which lab/emulate.cpp calls a kernel that it compiled for the CPU. lab/emulate.cpp appends this
// file to the kernel's translation unit.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "launch.h"
#include "ptx/copy.cuh"
#include "shared_memory.h"

namespace rapt::cuda_emulation {

[[noreturn]] inline void give_up(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::_Exit(EXIT_FAILURE);
}

template <class Params>
void run(void (*kernel)(Params), const Launch& l) {
  if (l.params_bytes != sizeof(Params)) give_up("its parameters differ from the library's");
  if (l.shared_bytes > sizeof dynamic_memory) give_up("it asks for too much shared memory");
  const Params& params = *static_cast<const Params*>(l.params);
  emulated_shared = dynamic_memory;
  std::memset(dynamic_memory + l.shared_bytes, 0xff, sizeof dynamic_memory - l.shared_bytes);
  gridDim.y = l.grid[1], gridDim.z = l.grid[2];
  for (blockIdx.z = 0; blockIdx.z < l.grid[2]; ++blockIdx.z)
    for (blockIdx.y = 0; blockIdx.y < l.grid[1]; ++blockIdx.y)
      launch(l.grid[0], l.threads, reinterpret_cast<float*>(emulated_shared), l.shared_bytes / sizeof(float), [&] {
        emulated_copies() = {};  // drops copies for which a thread of an earlier block did not wait
        kernel(params);
      });
  for (size_t i = l.shared_bytes; i < sizeof dynamic_memory; ++i)
    if (dynamic_memory[i] != static_cast<char>(0xff)) give_up("it wrote past the end of its block's shared memory");
}

}  // namespace rapt::cuda_emulation

extern "C" __attribute__((visibility("default"))) void rapt_emulate(const rapt::cuda_emulation::Launch& launch) {
  rapt::cuda_emulation::run(rapt_kernel, launch);
}

#if defined(RAPT_TRACE_ON)
extern "C" __attribute__((visibility("default"))) void rapt_emulate_trace(const rapt::TraceBuffer& buffer) {
  rapt_trace_buffer = buffer;
}
#endif
