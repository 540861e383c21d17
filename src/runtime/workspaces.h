// GPU memory for calls that bring no workspace: a buffer for each stream that needed one, until the context ends.
// Of GpuResources, used by sdpa.cpp. Thread-safe: calls on one stream take turns while they enqueue their steps.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "cuda/cuda.h"
#include "kernels/family.h"
#include "runtime/plan.h"

namespace rapt {

class Workspaces {
  struct OfStream;

 public:
  // The memory of a stream, and the right to enqueue work that uses it: steps of two calls must not mix.
  class Lease {
   public:
    Lease() = default;
    explicit Lease(const Workspace& of_the_caller) : workspace_(of_the_caller) {}
    Workspace workspace() const { return workspace_; }

   private:
    friend class Workspaces;
    std::unique_lock<std::mutex> turn_;
    Workspace workspace_;
  };

  Workspaces();
  ~Workspaces();
  Workspaces(const Workspaces&) = delete;
  Workspaces& operator=(const Workspaces&) = delete;

  // Of a plan that needs workspace. In a ContextScope of the stream. Grows what is too small, which waits for the
  // stream; throws Error instead where the stream is captured. What a capture has seen is neither moved nor freed.
  Lease lease(const Problem& problem, const Plan& plan, int device_index, cuda::StreamHandle stream);

 private:
  OfStream& of_stream(int device_index, cuda::StreamHandle stream, bool capturing);

  std::mutex mutex_;
  std::map<std::pair<int, uint64_t>, std::unique_ptr<OfStream>> streams_;  // by stream id
  // The id of each stream at its last call outside a capture: the driver returns none for a stream that is captured.
  // The per-thread default stream has one handle in all threads, so the thread belongs to the key.
  std::map<std::tuple<int, cuda::StreamHandle, std::thread::id>, uint64_t> ids_;
};

}  // namespace rapt
