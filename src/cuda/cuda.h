// rapt's interface to the CUDA driver: opens libcuda at run time; functions, contexts, kernels, launches. Used by
// context.cpp, host halves of kernel families, check/ and lab/. Independent of compilation and attention.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"

namespace rapt::cuda {

using DevicePtr = unsigned long long;  // CUdeviceptr
using StreamHandle = void*;            // CUstream; nullptr is the legacy default stream
struct Driver;                         // driver.h: the function table

// The driver, opened once in a process. Null if there is none; then `why` gets the searched names and their errors.
const Driver* find_driver(std::string* why = nullptr);
// Returns the driver. Throws Error{environment} if there is none.
const Driver& driver();

// The newest CUDA major version whose code the driver loads: 12 for a driver of CUDA 12.4.
int supported_cuda_major(const Driver& driver);

// Number of GPUs. 0 without a driver.
int device_count();
// Properties of GPU `index`, read once. Throws Error if there is no such GPU.
const Device& device(int index);

// Makes a context of GPU `index` current for a scope. This is the stream's own context. If that context belongs to
// another GPU, the constructor throws Error. A default stream (null, 1 or 2) has no context of its own. For a default
// stream it is the current context if that belongs to GPU `index`, else the GPU's primary context, which is retained
// until the process ends. On one thread, scopes must end in reverse order.
class ContextScope {
 public:
  ContextScope(int index, StreamHandle stream);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  ContextScope() noexcept;
  bool pushed_ = false;
  int outer_;  // the primary_in_scope() of the enclosing scope
};

bool is_capturing(StreamHandle stream);
void synchronize(StreamHandle stream);
// While this object lives, this thread may allocate and free memory even if a stream is being captured.
class UncapturedScope {
 public:
  UncapturedScope();
  ~UncapturedScope();
  UncapturedScope(const UncapturedScope&) = delete;
  UncapturedScope& operator=(const UncapturedScope&) = delete;

 private:
  int outer_;  // the previous capture mode of the thread
};
// cuStreamGetId. Unlike a handle, an id is never reused.
uint64_t stream_id(StreamHandle stream);

struct KernelAttributes {
  int registers = 0, local_bytes = 0, static_shared_bytes = 0, max_threads = 0;
};

// Waits for the stream, then copies.
void copy_to_host(void* to, const void* from, size_t bytes, StreamHandle stream);

// A range of global memory whose lines stay in the L2 cache longer than others (access-policy window).
struct L2Window {
  const void* begin = nullptr;
  size_t bytes = 0;    // 0: no window
  float share = 1.0f;  // the fraction of its lines that persist
};

// A part of the current device's L2 cache that only lines of L2Windows may fill. Without it, windows have no effect.
// The destructor gives it back. For the lab.
class PersistingL2 {
 public:
  struct Limits {
    size_t bytes = 0, window_bytes = 0;  // the largest part and the largest window; 0 if the GPU has no such part
  };
  static Limits limits(int device_index);
  // Takes at most limits().bytes. Throws Error{unsupported} if the GPU or the driver has no such part.
  PersistingL2(int device_index, size_t bytes);
  ~PersistingL2();
  PersistingL2(const PersistingL2&) = delete;
  PersistingL2& operator=(const PersistingL2&) = delete;
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_;
};

// One kernel of one image, loaded for every device (cuLibraryLoadData). Its entry is "rapt_kernel". Must be created in
// a ContextScope. Thread-safe afterwards.
class Kernel {
 public:
  Kernel(const void* image, size_t bytes, const char* entry);
  ~Kernel();
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  // Loads the kernel on the current device and requests this much dynamic shared memory. Required before launch().
  void prepare(int device_index, size_t smem_bytes);
  // True if prepare() would have nothing to do, for the primary context of that device.
  bool is_prepared(int device_index, size_t smem_bytes) const;
  KernelAttributes attributes(int device_index) const;
  // Writes a global variable (or constant) of the image, in the current context, synchronously. Throws Error if the
  // image has no variable of this name and size.
  void write_global(const char* name, const void* from, size_t bytes) const;
  int blocks_per_sm(int device_index, int threads, size_t smem_bytes) const;

  struct Launch {
    unsigned grid_x = 1, grid_y = 1, grid_z = 1, threads = 1;
    size_t smem_bytes = 0;
    StreamHandle stream = nullptr;
    bool programmatic = false;                             // programmatic dependent launch
    unsigned cluster_x = 1, cluster_y = 1, cluster_z = 1;  // blocks per cluster, at most 8 in total; needs sm_90
    bool cooperative = false;                              // the launch fails unless all blocks can be resident at once
    L2Window l2_window = {};
  };
  // cuLaunchKernelEx with one parameter block, and no other driver call.
  // Throws Error{unsupported} if no GPU accepts such a grid, block or cluster.
  void launch(const Launch& launch, const void* params) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Device memory of the current context, freed by the destructor (lab, check, tests, workspaces).
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t bytes);  // throws Error{out_of_memory}
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  void* data() const { return reinterpret_cast<void*>(data_); }
  size_t bytes() const { return bytes_; }
  void upload(const void* from, size_t bytes, size_t offset = 0);  // synchronous
  void download(void* to, size_t bytes, size_t offset = 0) const;  // synchronous
  void fill(unsigned char value);                                  // synchronous
  void clear(StreamHandle stream);                                 // writes zeros, in stream order

 private:
  void release() noexcept;
  DevicePtr data_ = 0;
  size_t bytes_ = 0;
  void* context_ = nullptr;  // the context of the memory, so any thread can free it
};

// A newly created stream, never the legacy default stream.
class Stream {
 public:
  Stream();
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  StreamHandle handle() const { return handle_; }
  void synchronize() const;

 private:
  StreamHandle handle_ = nullptr;
};

class Event {
 public:
  Event();
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(StreamHandle stream);
  void synchronize() const;
  // Later work of the stream begins after the work that was before the last record(). The host does not wait.
  void order_before(StreamHandle stream) const;
  static double microseconds(const Event& begin, const Event& end);

 private:
  void* handle_ = nullptr;
};

// The work that was launched on `stream` between begin() and the constructor, for replay.
class Graph {
 public:
  static void begin(StreamHandle stream);  // starts capture, thread-local mode
  explicit Graph(StreamHandle stream);     // ends capture and instantiates
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void replay(StreamHandle stream) const;

 private:
  void* graph_ = nullptr;
  void* executable_ = nullptr;
};

}  // namespace rapt::cuda
