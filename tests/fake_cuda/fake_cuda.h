// A stand-in for libcuda.so.1, whose device memory is host memory, and control functions for tests. It accepts kernels
// and records launches, but kernels do not run. A program finds the stand-in through LD_LIBRARY_PATH. A test also gets
// fake_cuda_control by dlopen("libcuda.so.1") and dlsym. Calls to the control functions are not counted. Environment
// variables (with defaults): FAKE_CUDA_DEVICES (1) is the number of GPUs. FAKE_CUDA_SM (90) is their compute
// capability; "80,90" gives one for each device, and the last one repeats. FAKE_CUDA_VERSION (13000). FAKE_CUDA_FAIL:
// functions that fail, and their results ("cuInit=100,cuMemAlloc=2"). FAKE_CUDA_LACKS: functions that cuGetProcAddress
// does not find ("cuTensorMapEncodeTiled"). FAKE_CUDA_HANG: cuStreamSynchronize never returns after a launch.
// FAKE_CUDA_RUN: a library whose function fake_cuda_run is called for each launch.
#pragma once

#include <cstddef>

#include "kernels/shared/trace_buffer.h"

namespace fake_cuda {

struct LaunchRecord {
  unsigned grid_x = 0, grid_y = 0, grid_z = 0, threads = 0, smem_bytes = 0;
  void* stream = nullptr;
  void* context = nullptr;       // the context of the launch
  const void* params = nullptr;  // the value of kernelParams[0]
  int first_word = 0;            // the first four bytes of that
  bool by_kernel = false;        // a CUkernel was passed as the CUfunction
  bool programmatic = false;
  unsigned cluster_x = 1, cluster_y = 1, cluster_z = 1;
  bool cooperative = false;
  const void* window_begin = nullptr;  // the L2 access-policy window
  size_t window_bytes = 0;
  float window_share = 0;
};

// The stand-in's cuTensorMapEncodeTiled writes this instead of a real map. Numbers are those of CUtensorMapDataType and
// the other enums.
struct TensorMapRecord {
  unsigned element_type = 0, rank = 0;
  unsigned long long address = 0, sizes[5] = {}, strides[4] = {};
  unsigned box[5] = {};
  unsigned interleave = 0, swizzle = 0, l2_promotion = 0, fill = 0;
  unsigned reserved = 0;

  constexpr unsigned element_bytes() const {
    constexpr unsigned bytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
    return element_type < sizeof bytes / sizeof bytes[0] ? bytes[element_type] : 0;
  }
};
static_assert(sizeof(TensorMapRecord) == 128);

// The function "fake_cuda_run" of $FAKE_CUDA_RUN. It runs a kernel of one image on this CPU. trace: the variable
// rapt_trace_buffer of the image.
using Run = void (*)(const void* params, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned threads,
                     unsigned smem_bytes, const rapt::TraceBuffer& trace);

struct Control {
  long (*calls)(const char* function);  // number of calls of a function; null: of all functions
  void (*reset_calls)();
  void (*fail)(const char* function, int result);  // the function fails until fail() is called again with 0
  long (*launches)();                              // number of executed launches, also those in a replayed graph
  LaunchRecord (*last_launch)();                   // the last executed or captured launch

  void* (*make_context)(int device);  // like cuCtxCreate, but does not make the context current
  void (*destroy_context)(void* context);
  void* (*primary)(int device);        // retains the primary context, as the CUDA runtime does
  int (*primary_retains)(int device);  // how often the primary context is retained, by rapt and tests
  void (*set_current)(void* context);  // same as cuCtxSetCurrent
  void* (*current)();
  int (*depth)();                                // depth of this thread's stack of contexts
  void* (*make_blocking_stream)(void* context);  // makes a stream that waits for the legacy default stream
  void* (*make_stream)(void* context);

  void (*set_static_smem)(int bytes);     // static shared memory of kernels that are loaded later
  void (*set_jit_log)(const char* text);  // the text that loading an image writes to the error log
  int (*opt_in_smem)(int device);         // opt-in of the last kernel for which it was set; -1 if it was never set
  size_t (*persisting_l2_bytes)();        // the limit that cuCtxSetLimit has set
  int (*carveout)(int device);            // carveout of the last kernel for which it was set
  size_t (*live_bytes)();                 // bytes that are allocated and not freed
  int (*live_libraries)();
  bool (*image_was)(const void* bytes, size_t count);  // true if the last loaded image (with its NUL) had these bytes
};

}  // namespace fake_cuda

extern "C" const fake_cuda::Control* fake_cuda_control();
