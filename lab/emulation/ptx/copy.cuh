// Stand-ins of ptx/copy.cuh for emulated kernels (cuda_emulation.h). Addresses in shared memory are offsets from the
// block's memory. A copy happens as late as possible: when its thread waits for it. The include path finds this file
// before the real one.
#pragma once

#include <array>
#include <cstring>
#include <deque>
#include <vector>

namespace rapt {

inline char* emulated_shared = nullptr;

inline unsigned shared_address(const void* p) {
  return static_cast<unsigned>(static_cast<const char*>(p) - emulated_shared);
}

struct EmulatedCopy {
  unsigned to;
  const void* from;
  bool inside;
  size_t bytes = 16;
};
struct EmulatedCopies {  // the copies of one thread
  std::vector<EmulatedCopy> open;
  std::deque<std::vector<EmulatedCopy>> groups;
};
inline EmulatedCopies& emulated_copies() {
  static std::array<EmulatedCopies, 1024> of_threads;
  return of_threads[threadIdx.x];
}
inline void emulated_copy(const EmulatedCopy& copy) {
  copy.inside ? std::memcpy(emulated_shared + copy.to, copy.from, copy.bytes)
              : std::memset(emulated_shared + copy.to, 0, copy.bytes);
}
inline void cp_async_16(unsigned to, const void* from, bool inside) {
  emulated_copies().open.push_back({to, from, inside});
}
inline void cp_async_4(unsigned to, const void* from) { emulated_copies().open.push_back({to, from, true, 4}); }
inline void cp_async_commit_group() {
  EmulatedCopies& copies = emulated_copies();
  copies.groups.push_back(std::move(copies.open));
  copies.open.clear();
}
template <int most = 7>
inline void cp_async_wait_group(int n) {
  std::deque<std::vector<EmulatedCopy>>& groups = emulated_copies().groups;
  for (; static_cast<int>(groups.size()) > n; groups.pop_front())
    for (const EmulatedCopy& copy : groups.front()) emulated_copy(copy);
}

inline unsigned volatile_copy(unsigned x) { return x; }
template <bool programmatic>
inline void griddepcontrol_wait() {}
template <bool programmatic>
inline void griddepcontrol_launch_dependents() {}

struct alignas(8) Bytes8 {
  unsigned word[2];
};
struct alignas(16) Bytes16 {
  unsigned word[4];
};
template <class T>
inline T emulated_load(unsigned address) {
  T x;
  std::memcpy(&x, emulated_shared + address, sizeof x);
  return x;
}
template <class T>
inline void emulated_store(unsigned address, T x) {
  std::memcpy(emulated_shared + address, &x, sizeof x);
}
inline void store_global_4(float* to, float x, float y, float z, float w) {
  to[0] = x, to[1] = y, to[2] = z, to[3] = w;
}
inline void load_global_4(const float* from, float& x, float& y, float& z, float& w) {
  x = from[0], y = from[1], z = from[2], w = from[3];
}
inline void add_global_4(float* to, float x, float y, float z, float w) {
  to[0] += x, to[1] += y, to[2] += z, to[3] += w;
}
inline void add_release(unsigned* to, unsigned x) { atomicAdd(to, x); }
inline unsigned load_acquire(const unsigned* from) { return *from; }
inline unsigned atomic_inc_acq_rel(unsigned* to, unsigned most) { return atomicInc(to, most); }
inline unsigned load_shared_2_bytes(unsigned address) { return emulated_load<unsigned short>(address); }
inline unsigned load_shared(unsigned address) { return emulated_load<unsigned>(address); }
inline void store_shared(unsigned address, unsigned x) { emulated_store(address, x); }
inline unsigned exchange_shared(unsigned address, unsigned x) {
  const unsigned old = load_shared(address);
  store_shared(address, x);
  return old;
}
inline unsigned add_shared(unsigned address, unsigned x) {
  const unsigned old = load_shared(address);
  store_shared(address, old + x);
  return old;
}
inline void load_shared_2(unsigned address, float& x, float& y) {
  x = emulated_load<float>(address), y = emulated_load<float>(address + 4);
}
inline void store_shared_2(unsigned address, float x, float y) {
  emulated_store(address, x), emulated_store(address + 4, y);
}
inline void load_shared_words_2(unsigned address, unsigned& x, unsigned& y) {
  x = load_shared(address), y = load_shared(address + 4);
}
inline void load_shared_4(unsigned address, float& x, float& y, float& z, float& w) {
  load_shared_2(address, x, y), load_shared_2(address + 8, z, w);
}
inline Bytes16 load_shared_16(unsigned address) { return emulated_load<Bytes16>(address); }
inline void store_shared_16(unsigned address, const Bytes16& x) { emulated_store(address, x); }
inline void store_global_16(void* to, const Bytes16& x) { *static_cast<Bytes16*>(to) = x; }

}  // namespace rapt
