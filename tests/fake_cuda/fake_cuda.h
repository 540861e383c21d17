// A stand-in for libcuda.so.1 over host memory, and what a test can control besides the driver's own functions. Kernels
// are accepted and launches recorded, but nothing runs. A program finds it through LD_LIBRARY_PATH; a test also gets
// fake_cuda_control by dlopen("libcuda.so.1") and dlsym. Calls to the control functions are not counted. Environment:
// FAKE_CUDA_DEVICES (1), FAKE_CUDA_SM (90; "80,90" by device, the last one repeats), FAKE_CUDA_VERSION (13000),
// FAKE_CUDA_FAIL ("cuInit=100,cuMemAlloc=2": these functions fail with that result), FAKE_CUDA_LACKS
// ("cuTensorMapEncodeTiled": cuGetProcAddress does not find these functions), FAKE_CUDA_HANG (cuStreamSynchronize never
// returns after a launch), FAKE_CUDA_RUN (a library whose fake_cuda_run is called for each launch).
#pragma once

#include <cstddef>

#include "kernels/shared/trace_buffer.h"

namespace fake_cuda {

struct LaunchRecord {
  unsigned grid_x = 0, grid_y = 0, grid_z = 0, threads = 0, smem_bytes = 0;
  void* stream = nullptr;
  void* context = nullptr;       // the context in which it runs
  const void* params = nullptr;  // kernelParams[0]
  int first_word = 0;            // the first four bytes of that
  bool by_kernel = false;        // a CUkernel was passed as the CUfunction
  bool programmatic = false;
  unsigned cluster_x = 1, cluster_y = 1, cluster_z = 1;
  bool cooperative = false;
  const void* window_begin = nullptr;  // the L2 access-policy window
  size_t window_bytes = 0;
  float window_share = 0;
};

// Written by cuTensorMapEncodeTiled here instead of a real map. Numbers as in CUtensorMapDataType and the other enums.
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

// The function "fake_cuda_run" of $FAKE_CUDA_RUN: runs a kernel of one image on this CPU. trace: rapt_trace_buffer of
// the image.
using Run = void (*)(const void* params, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned threads,
                     unsigned smem_bytes, const rapt::TraceBuffer& trace);

struct Control {
  long (*calls)(const char* function);  // null: of all functions
  void (*reset_calls)();
  void (*fail)(const char* function, int result);  // until called again with 0
  long (*launches)();                              // executed, not captured; replaying a graph counts its launches
  LaunchRecord (*last_launch)();                   // executed or captured

  void* (*make_context)(int device);  // like cuCtxCreate, but not current
  void (*destroy_context)(void* context);
  void* (*primary)(int device);        // retained, as by the CUDA runtime
  int (*primary_retains)(int device);  // how often it was retained by anyone
  void (*set_current)(void* context);  // cuCtxSetCurrent
  void* (*current)();
  int (*depth)();                                // of this thread's context stack
  void* (*make_blocking_stream)(void* context);  // waits for the legacy default stream
  void* (*make_stream)(void* context);

  void (*set_static_smem)(int bytes);     // of kernels loaded from now on
  void (*set_jit_log)(const char* text);  // text that loading an image writes to the error log
  int (*opt_in_smem)(int device);         // of the last kernel whose attribute was set: -1 if never set
  size_t (*persisting_l2_bytes)();        // the limit that cuCtxSetLimit has set
  int (*carveout)(int device);            // likewise
  size_t (*live_bytes)();                 // allocated and not freed
  int (*live_libraries)();
  bool (*image_was)(const void* bytes, size_t count);  // the last loaded image, including its NUL
};

}  // namespace fake_cuda

extern "C" const fake_cuda::Control* fake_cuda_control();
