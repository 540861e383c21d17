// cp.async from global to shared memory (PTX ISA 9.0, section 9.7.9.25.3), loads and stores of shared memory, and
// griddepcontrol. Device only.
#pragma once

namespace rapt {

inline unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

// Returns x, but the optimiser does not know this. So it cannot hoist or reuse results that are computed from the copy.
inline unsigned volatile_copy(unsigned x) {
  unsigned y;
  asm volatile("mov.b32 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// Copies 16 bytes, bypassing L1. If `inside` is false, writes zeros and reads nothing.
inline void cp_async_16(unsigned to, const void* from, bool inside) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(inside ? 16 : 0)
               : "memory");
}

// 4 bytes, at addresses that are multiples of 4.
inline void cp_async_4(unsigned to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

inline void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most n of this thread's groups are pending. The instruction needs a literal, so n must become a
// constant after unrolling.
template <int most = 7>
inline void cp_async_wait_group(int n) {
  if (n >= most)
    asm volatile("cp.async.wait_group %0;" ::"n"(most) : "memory");
  else if constexpr (most > 0)
    cp_async_wait_group<most - 1>(n);
}

// Loads and stores of 2, 4, 8 and 16 bytes at a shared memory address.
inline unsigned load_shared(unsigned address) {
  unsigned x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
  return x;
}
inline unsigned load_shared_2_bytes(unsigned address) {
  unsigned short x;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(x) : "r"(address) : "memory");
  return x;
}
inline void store_shared(unsigned address, unsigned x) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}
// Atomic operations. They return the old value.
inline unsigned exchange_shared(unsigned address, unsigned x) {
  unsigned old;
  asm volatile("atom.shared.exch.b32 %0, [%1], %2;" : "=r"(old) : "r"(address), "r"(x) : "memory");
  return old;
}
inline unsigned add_shared(unsigned address, unsigned x) {
  unsigned old;
  asm volatile("atom.shared.add.u32 %0, [%1], %2;" : "=r"(old) : "r"(address), "r"(x) : "memory");
  return old;
}
inline void load_shared_2(unsigned address, float& x, float& y) {
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x), "=f"(y) : "r"(address) : "memory");
}
inline void store_shared_2(unsigned address, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(x), "f"(y) : "memory");
}
inline void load_shared_words_2(unsigned address, unsigned& x, unsigned& y) {
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(x), "=r"(y) : "r"(address) : "memory");
}
inline void load_shared_4(unsigned address, float& x, float& y, float& z, float& w) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x), "=f"(y), "=f"(z), "=f"(w)
               : "r"(address)
               : "memory");
}

struct alignas(8) Bytes8 {
  unsigned word[2];
};
struct alignas(16) Bytes16 {
  unsigned word[4];
};
inline Bytes16 load_shared_16(unsigned address) {
  Bytes16 x;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.word[0]), "=r"(x.word[1]), "=r"(x.word[2]), "=r"(x.word[3])
               : "r"(address)
               : "memory");
  return x;
}
inline void store_shared_16(unsigned address, const Bytes16& x) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x.word[0]), "r"(x.word[1]),
               "r"(x.word[2]), "r"(x.word[3])
               : "memory");
}
// Stores 16 bytes to global memory. Without this function the compiler can split such a store into four (measured).
inline void store_global_16(void* to, const Bytes16& x) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(x.word[0]), "r"(x.word[1]), "r"(x.word[2]),
               "r"(x.word[3])
               : "memory");
}

// Stores and loads 16 bytes of a workspace that several CTAs write and read. The load bypasses L1, which can have older
// values.
inline void store_global_4(float* to, float x, float y, float z, float w) {
  asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x), "f"(y), "f"(z), "f"(w) : "memory");
}
inline void load_global_4(const float* from, float& x, float& y, float& z, float& w) {
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x), "=f"(y), "=f"(z), "=f"(w)
               : "l"(from)
               : "memory");
}

// Adds four numbers to global memory (sm_90; PTX ISA 9.0, section 9.7.13.6). The thread does not wait for the result.
inline void add_global_4(float* to, float x, float y, float z, float w) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x), "f"(y), "f"(z), "f"(w)
               : "memory");
}

// Adds with release semantics at the scope of the GPU, and loads with acquire semantics (PTX ISA 9.0, sections 9.7.13.5
// and 9.7.9.8).
inline void add_release(unsigned* to, unsigned x) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(to), "r"(x) : "memory");
}
inline unsigned load_acquire(const unsigned* from) {
  unsigned x;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
  return x;
}

// atomicInc with acquire and release semantics at the scope of the GPU (PTX ISA 9.0, section 9.7.13.5).
inline unsigned atomic_inc_acq_rel(unsigned* to, unsigned most) {
  unsigned old;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(old) : "l"(to), "r"(most) : "memory");
  return old;
}

// Programmatic dependent launch (PTX ISA 9.0, section 9.7.13.13), sm_90 and newer. wait: waits until the preceding
// kernels have finished and their writes are visible. launch_dependents: lets CTAs of the next kernel start.
template <bool programmatic>
inline void griddepcontrol_wait() {
  if constexpr (programmatic) asm volatile("griddepcontrol.wait;" ::: "memory");
}
template <bool programmatic>
inline void griddepcontrol_launch_dependents() {
  if constexpr (programmatic) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

}  // namespace rapt
