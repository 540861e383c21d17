// GPU workspaces for calls without their own: one buffer for each stream that needs it, until the context ends. Part of
// GpuResources, used by sdpa.cpp. Thread-safe: calls on one stream enqueue their steps one at a time.
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
  // A stream's memory, and the exclusive right to enqueue work that uses it. The right is exclusive because steps of
  // two calls must not mix.
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

  // Returns the memory for a plan that needs workspace. Needs a ContextScope of the stream. If a buffer is too small,
  // waits for the stream and makes a larger one. If the stream is captured, throws Error instead. Memory that a capture
  // has used is neither moved nor freed.
  Lease lease(const Problem& problem, const Plan& plan, int device_index, cuda::StreamHandle stream);

 private:
  OfStream& of_stream(int device_index, cuda::StreamHandle stream, bool capturing);

  std::mutex mutex_;
  std::map<std::pair<int, uint64_t>, std::unique_ptr<OfStream>> streams_;  // key: device, stream id
  // The id of each stream at its last call outside a capture. It is stored because the driver returns no id for a
  // captured stream. The per-thread default stream has the same handle in all threads, so the key contains the thread.
  std::map<std::tuple<int, cuda::StreamHandle, std::thread::id>, uint64_t> ids_;
};

}  // namespace rapt
