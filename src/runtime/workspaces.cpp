// Implements workspaces.h: decides when buffers grow, and when old buffers are freed.
#include "runtime/workspaces.h"

#include <algorithm>

#include "base/error.h"

namespace rapt {
namespace {

const cuda::StreamHandle per_thread_stream = reinterpret_cast<cuda::StreamHandle>(2);  // CU_STREAM_PER_THREAD

// Returns a buffer of at least `bytes` bytes. To make growth rare, it has at least 1.5 times the old size, but if
// memory is short only `bytes`.
cuda::Buffer larger(const cuda::Buffer& old, size_t bytes) {
  const size_t roomy = std::max(bytes, old.bytes() + old.bytes() / 2);
  try {
    return cuda::Buffer(roomy);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::out_of_memory || roomy == bytes) throw;
  }
  return cuda::Buffer(bytes);
}

}  // namespace

// Counters have their own memory: the scratch of one plan must not become the counters of another.
struct Workspaces::OfStream {
  std::mutex turn;
  cuda::Buffer counters, scratch;
  bool captured = false;           // a graph can use both
  std::vector<cuda::Buffer> kept;  // old buffers that graphs can still use

  bool suffices(size_t counter_bytes, size_t scratch_bytes) const {
    return counters.bytes() >= counter_bytes && scratch.bytes() >= scratch_bytes;
  }
  void grow(size_t counter_bytes, size_t scratch_bytes, cuda::StreamHandle stream);
  void replace(cuda::Buffer& buffer, cuda::Buffer fresh) {
    std::swap(buffer, fresh);
    if (captured && fresh.bytes() > 0) kept.push_back(std::move(fresh));
  }
};

void Workspaces::OfStream::grow(size_t counter_bytes, size_t scratch_bytes, cuda::StreamHandle stream) {
  const cuda::UncapturedScope scope;  // because other threads can be capturing a stream
  cuda::Buffer fresh_counters, fresh_scratch;
  if (counters.bytes() < counter_bytes) {
    fresh_counters = larger(counters, counter_bytes);
    fresh_counters.clear(stream);
  }
  if (scratch.bytes() < scratch_bytes) fresh_scratch = larger(scratch, scratch_bytes);
  cuda::synchronize(stream);  // afterwards the counters are 0, and no kernel uses the old buffers
  if (fresh_counters.bytes() > 0) replace(counters, std::move(fresh_counters));
  if (fresh_scratch.bytes() > 0) replace(scratch, std::move(fresh_scratch));
}

Workspaces::Workspaces() = default;
Workspaces::~Workspaces() = default;

Workspaces::OfStream& Workspaces::of_stream(int device_index, cuda::StreamHandle stream, bool capturing) {
  constexpr uint64_t never_seen = UINT64_MAX;
  const std::lock_guard lock(mutex_);
  const auto thread = stream == per_thread_stream ? std::this_thread::get_id() : std::thread::id();
  uint64_t& id = ids_.try_emplace({device_index, stream, thread}, never_seen).first->second;
  if (!capturing) id = cuda::stream_id(stream);
  std::unique_ptr<OfStream>& entry = streams_[{device_index, id}];
  if (entry == nullptr) entry = std::make_unique<OfStream>();
  return *entry;
}

Workspaces::Lease Workspaces::lease(const Problem& problem, const Plan& plan, int device_index,
                                    cuda::StreamHandle stream) {
  const size_t counters = plan.workspace_zero_bytes, scratch = plan.workspace_bytes - counters;
  const bool capturing = cuda::is_capturing(stream);
  OfStream& mine = of_stream(device_index, stream, capturing);
  Lease lease;
  lease.turn_ = std::unique_lock(mine.turn);
  if (!mine.suffices(counters, scratch)) {
    if (capturing)
      invalid("stream = ", stream, ": is being captured, and its workspace has ",
              mine.counters.bytes() + mine.scratch.bytes(), " bytes, but this call needs ", plan.workspace_bytes,
              "; call rapt_prepare with \"", to_string(problem), "\" on this stream first, or pass workspace");
    mine.grow(counters, scratch, stream);
  }
  mine.captured = mine.captured || capturing;
  lease.workspace_ = {mine.counters.data(), mine.scratch.data()};
  return lease;
}

}  // namespace rapt
