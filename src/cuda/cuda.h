// The CUDA driver as rapt sees it: libcuda opened at run time, the functions in use, contexts, kernels, launches.
// Used by context.cpp, kernel families' host halves, check/ and lab/; knows nothing of compilation or attention.
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

// The driver, opened once a process. Null where there is none; `why` then says what was looked for and what failed.
const Driver* find_driver(std::string* why = nullptr);
// The same, but throws Error{environment}.
const Driver& driver();

// The newest CUDA whose code it loads: 12 for a driver of CUDA 12.4.
int supported_cuda_major(const Driver& driver);

// Number of GPUs (0 without a driver).
int device_count();
// Facts of GPU `index`, read once. Throws Error when there is no such GPU.
const Device& device(int index);

// Makes a context of GPU `index` current for a scope: the stream's own (an error if that belongs to another device);
// else the current one if it is of that device; else the device's primary context, retained for the process.
// A default stream (null, 1 or 2) has no context of its own. On one thread, scopes end in reverse order.
class ContextScope {
 public:
  ContextScope(int index, StreamHandle stream);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  ContextScope() noexcept;
  bool pushed_ = false;
  int outer_;  // the enclosing scope's answer to primary_in_scope()
};

bool is_capturing(StreamHandle stream);
void synchronize(StreamHandle stream);
// While one lives, memory may be allocated and freed in this thread whatever streams are being captured.
class UncapturedScope {
 public:
  UncapturedScope();
  ~UncapturedScope();
  UncapturedScope(const UncapturedScope&) = delete;
  UncapturedScope& operator=(const UncapturedScope&) = delete;

 private:
  int outer_;  // the thread's capture mode
};
// cuStreamGetId: unlike a handle it is never used again.
uint64_t stream_id(StreamHandle stream);

struct KernelAttributes {
  int registers = 0, local_bytes = 0, static_shared_bytes = 0, max_threads = 0;
};

// Waits for the stream, then copies.
void copy_to_host(void* to, const void* from, size_t bytes, StreamHandle stream);

// One kernel of one image, loaded for every device (cuLibraryLoadData); the entry is "rapt_kernel".
// Made in a ContextScope; thread-safe afterwards.
class Kernel {
 public:
  Kernel(const void* image, size_t bytes, const char* entry);
  ~Kernel();
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  // Loads it on the current device and opts in to so much dynamic shared memory. Must have run before launch().
  void prepare(int device_index, size_t smem_bytes);
  // Whether prepare() would find nothing to do, on the primary context of that device.
  bool is_prepared(int device_index, size_t smem_bytes) const;
  KernelAttributes attributes(int device_index) const;
  int blocks_per_sm(int device_index, int threads, size_t smem_bytes) const;

  struct Launch {
    unsigned grid_x = 1, grid_y = 1, grid_z = 1, threads = 1;
    size_t smem_bytes = 0;
    StreamHandle stream = nullptr;
    bool programmatic = false;                             // programmatic dependent launch
    unsigned cluster_x = 1, cluster_y = 1, cluster_z = 1;  // blocks of a cluster, at most 8 in all; needs sm_90
    bool cooperative = false;                              // all blocks are resident at once, or it fails
  };
  // cuLaunchKernelEx with one parameter block. Nothing else is called: no attribute, no query.
  // Throws Error{unsupported} where no card takes such a grid, block or cluster.
  void launch(const Launch& launch, const void* params) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Device memory of the current context, freed on destruction (lab, check, tests, workspaces).
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
  void clear(StreamHandle stream);                                 // to zeros, in the order of the stream

 private:
  void release() noexcept;
  DevicePtr data_ = 0;
  size_t bytes_ = 0;
  void* context_ = nullptr;  // where it lives, so that any thread can free it
};

// A stream of its own, never the legacy default one.
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
  static double microseconds(const Event& begin, const Event& end);

 private:
  void* handle_ = nullptr;
};

// What was launched on `stream` between begin() and the constructor, to be replayed.
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
