// The part of CUDA that is needed to run a kernel's source on a CPU. The threads of a block are fibers. A fiber runs
// until it waits for other threads; then the next one runs. Included before the kernel's .cuh, by tests and by the
// units that lab/emulate.cpp compiles. A process runs one kernel at a time.
// The emulation tests indexing, missing or divergent synchronisation, and arithmetic. It cannot show speed, or races
// that its order of threads hides.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>

#define __shared__

// The thread sanitizer records calls and returns. Switches between fibers would make its records wrong.
#if defined(__SANITIZE_THREAD__)
#define RAPT_NO_FIBERS 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define RAPT_NO_FIBERS 1
#endif
#endif

struct CudaIndex {
  unsigned x = 0, y = 0, z = 0;
};
inline CudaIndex threadIdx, blockIdx, blockDim, gridDim;

namespace rapt::cuda_emulation {

class Block {
 public:
  static constexpr int lanes = 32;

  // The order in which warps run. first_ahead: the first warp runs until it waits for other warps, so it is as far
  // ahead of them as a GPU allows. last_ahead: the same for the last warp. mixed: a random warp runs for a short time
  // (its lanes wait for each other a few times), then another random warp.
  enum class WarpOrder { first_ahead, last_ahead, mixed };

  // Runs body() for every thread of a block.
  void run(unsigned threads, WarpOrder order, const std::function<void()>& body) {
    body_ = &body;
    warps_.assign((threads + lanes - 1) / lanes, {});
    for (unsigned t = 0; t < threads; ++t) ++warps_[t / lanes].threads;
    all_ = {};
    all_.threads = threads;
    named_ = {};
    while (fibers_.size() < threads) fibers_.push_back(std::make_unique<Fiber>());
    for (unsigned t = 0; t < threads; ++t) fibers_[t]->done = false;
    live_ = threads;
    order == WarpOrder::mixed ? run_mixed(threads) : run_ahead(threads, order == WarpOrder::last_ahead);
  }

  void wait_for_block() { wait(all_); }

  // A barrier for some of the block's threads (bar.sync, bar.arrive). The ids are 0 to 15.
  void wait_named(unsigned id, unsigned threads) {
    named_[id].threads = threads;
    wait(named_[id]);
  }
  void arrive_named(unsigned id, unsigned threads) {
    named_[id].threads = threads;
    arrive(named_[id]);
  }

  // A thread that waits in a loop calls pause(), so that other threads run. A thread that changes something for which
  // such a loop can wait must call note_progress().
  void pause() { switch_to(fibers_[threadIdx.x]->place, scheduler_); }
  void note_progress() { ++progress_; }
  [[noreturn]] static void fail(const char* what) {
    std::fprintf(stderr, "cuda_emulation: block %u: %s\n", blockIdx.x, what);
    std::abort();
  }

  // Returns the values of all lanes, after every lane of the warp has given its value.
  const std::array<unsigned, lanes>& exchange(unsigned value) {
    Group& warp = warps_[threadIdx.x / lanes];
    std::array<unsigned, lanes>& values = warp.values[warp.generation % 2];
    values[threadIdx.x % lanes] = value;
    wait(warp);
    return values;
  }

 private:
  // The place at which a fiber continues. We use the compiler's setjmp. A switch with libc's contexts makes a system
  // call, and these calls take ten times as long as all other work.
  struct ResumePoint {
    void* words[5];
  };
  // This must be a separate function: the jump must not be in the function that calls setjmp.
  [[noreturn, gnu::noinline]] static void jump_to(ResumePoint& to) { __builtin_longjmp(to.words, 1); }
  [[gnu::noinline]] static void switch_to(ResumePoint& from, ResumePoint& to) {
    if (__builtin_setjmp(from.words) == 0) jump_to(to);
    asm volatile("" ::: "memory");  // other threads have run in between
  }

  struct Fiber {
    ResumePoint place{};
    ucontext_t first{};  // used only to enter the stack for the first time
    static constexpr size_t stack_bytes = 256 << 10;
    std::unique_ptr<char[]> stack = std::make_unique_for_overwrite<char[]>(stack_bytes);
    bool begun = false, done = true;
  };
  struct Group {  // threads that wait for each other
    unsigned threads = 0, arrived = 0;
    unsigned long generation = 0;
    std::array<std::array<unsigned, lanes>, 2> values{};  // values of two generations: this one and the previous one
  };

  static void entry();  // entry of a fiber: it runs one body after another

  [[gnu::noinline]] void begin(Fiber& fiber) {
    fiber.begun = true;
    if (getcontext(&fiber.first) != 0) fail("getcontext failed");
    fiber.first.uc_stack.ss_sp = fiber.stack.get();
    fiber.first.uc_stack.ss_size = Fiber::stack_bytes;
    makecontext(&fiber.first, entry, 0);
    if (__builtin_setjmp(scheduler_.words) == 0) setcontext(&fiber.first);
    asm volatile("" ::: "memory");
  }

  void resume(unsigned thread) {
    threadIdx.x = thread;
    Fiber& fiber = *fibers_[thread];
    if (fiber.begun)
      switch_to(scheduler_, fiber.place);
    else
      begin(fiber);
  }

  void run_ahead(unsigned threads, bool backwards) {
    while (live_ > 0) {
      const unsigned long before = progress_;
      const auto warps = static_cast<unsigned>(warps_.size());
      for (unsigned n = 0; n < warps; ++n) {
        const unsigned warp = backwards ? warps - 1 - n : n;
        for (unsigned long last = progress_ - 1; progress_ != last;) {
          last = progress_;
          run_warp_once(warp, threads, backwards);
        }
      }
      if (progress_ == before) fail("threads wait for each other in different places");
    }
  }

  void run_mixed(unsigned threads) {
    const auto warps = static_cast<unsigned>(warps_.size());
    unsigned idle = 0;
    while (live_ > 0) {
      random_ = random_ * 1664525u + 1013904223u;  // the generator of Numerical Recipes gives every run the same order
      const unsigned long before = progress_;
      for (unsigned turns = (random_ >> 8) % 8 + 1; turns > 0; --turns)
        run_warp_once((random_ >> 16) % warps, threads, false);
      idle = progress_ == before ? idle + 1 : 0;
      if (idle > 64 * warps) fail("threads wait for each other in different places");
    }
  }

  // Runs every lane of a warp once, until it waits.
  void run_warp_once(unsigned warp, unsigned threads, bool backwards) {
    const unsigned first = warp * lanes, end = std::min(first + lanes, threads);
    for (unsigned n = first; n < end; ++n) {
      const unsigned t = backwards ? end - 1 - (n - first) : n;
      if (fibers_[t]->done) continue;
      resume(t);
      if (fibers_[t]->done) --live_, ++progress_;
    }
  }

  void wait(Group& group) {
    const unsigned long mine = group.generation;
    Fiber& fiber = *fibers_[threadIdx.x];
    arrive(group);
    while (group.generation == mine) switch_to(fiber.place, scheduler_);
  }
  void arrive(Group& group) {
    if (++group.arrived < group.threads) return;
    group.arrived = 0;
    ++group.generation;
    ++progress_;
  }

  const std::function<void()>* body_ = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Group> warps_;
  Group all_;
  std::array<Group, 16> named_{};
  ResumePoint scheduler_{};
  unsigned live_ = 0, random_ = 1;
  unsigned long progress_ = 0;  // number of ended waits, ended threads and arrivals at barriers
};

inline Block& block() {
  static Block one;
  return one;
}

inline void Block::entry() {
  Block& all = block();
  Fiber& fiber = *all.fibers_[threadIdx.x];
  for (;;) {
    (*all.body_)();
    fiber.done = true;
    switch_to(fiber.place, all.scheduler_);
  }
}

// Runs body() for every thread of every block, one block after another. Each block's shared memory is filled with NaN.
inline void launch(unsigned blocks, unsigned threads, float* shared, size_t shared_floats,
                   const std::function<void()>& body) {
  gridDim.x = blocks;
  blockDim.x = threads;
  for (unsigned b = 0; b < blocks; ++b) {
    blockIdx.x = b;
    for (size_t i = 0; i < shared_floats; ++i) shared[i] = __builtin_nanf("");
    block().run(threads, static_cast<Block::WarpOrder>(b % 3), body);
  }
}

}  // namespace rapt::cuda_emulation

inline void __syncthreads() { rapt::cuda_emulation::block().wait_for_block(); }
inline void __syncwarp(unsigned = 0xffffffffu) { rapt::cuda_emulation::block().exchange(0); }
inline unsigned __shfl_xor_sync(unsigned, unsigned x, int mask) {
  const auto lane = (threadIdx.x % 32) ^ static_cast<unsigned>(mask);
  return rapt::cuda_emulation::block().exchange(x)[lane];
}
inline float __shfl_xor_sync(unsigned lanes, float x, int mask) {
  return __builtin_bit_cast(float, __shfl_xor_sync(lanes, __builtin_bit_cast(unsigned, x), mask));
}
inline unsigned __ballot_sync(unsigned, bool x) {
  unsigned bits = 0;
  const auto& votes = rapt::cuda_emulation::block().exchange(x ? 1u : 0u);
  for (unsigned lane = 0; lane < 32; ++lane) bits |= votes[lane] << lane;
  return bits;
}
inline bool __any_sync(unsigned lanes, bool x) { return __ballot_sync(lanes, x) != 0; }
inline bool __all_sync(unsigned lanes, bool x) { return __ballot_sync(lanes, !x) == 0; }
inline bool __syncthreads_or(bool x) {
  static bool any;
  __syncthreads();
  if (threadIdx.x == 0) any = false;
  __syncthreads();
  if (x) any = true;
  __syncthreads();
  return any;
}
