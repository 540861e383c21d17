// The program's operator new. It counts its calls, and otherwise works like the standard library's. It is needed for
// the test that a warm call allocates nothing. It is in its own file, so that no compiler sees both new and delete.
#include <cstdlib>
#include <new>

#include "gpu_support.h"

namespace {
thread_local int64_t allocations = 0;
}

int64_t rapt::test::allocations_of_this_thread() { return allocations; }

void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(bytes > 0 ? bytes : 1);
}
void* operator new(size_t bytes) {
  if (void* memory = operator new(bytes, std::nothrow)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
