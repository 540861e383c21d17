// Stand-ins of prim/ptx_copy.cuh for kernels' texts on a CPU (cuda_emulation.h): addresses in shared memory are offsets
// from the block's memory, copies are done at once. Found before the real file by the test's include path.
#pragma once

#include <cstring>

namespace rapt {

inline char* emulated_shared = nullptr;

inline unsigned shared_address(const void* p) {
  return static_cast<unsigned>(static_cast<const char*>(p) - emulated_shared);
}
inline void cp_async_16(unsigned to, const void* from, bool inside) {
  if (inside)
    std::memcpy(emulated_shared + to, from, 16);
  else
    std::memset(emulated_shared + to, 0, 16);
}
inline void cp_async_commit_group() {}
template <int most = 8>
inline void cp_async_wait_group(int) {}

}  // namespace rapt
