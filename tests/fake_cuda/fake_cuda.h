// A stand-in for libcuda.so.1 over host memory: what a test may ask of it besides the driver's own functions.
// Kernels are accepted and launches recorded, but nothing runs. A program finds it through LD_LIBRARY_PATH; a test also
// reaches fake_cuda_control by dlopen("libcuda.so.1") and dlsym. None of these calls is counted.
//
// Environment: FAKE_CUDA_DEVICES (1), FAKE_CUDA_SM (90; "80,90" by device, the last one repeats), FAKE_CUDA_VERSION
// (13000), FAKE_CUDA_FAIL ("cuInit=100,cuMemAlloc=2": such functions fail with that result), FAKE_CUDA_LACKS
// ("cuTensorMapEncodeTiled": cuGetProcAddress does not know such functions).
#pragma once

#include <cstddef>

namespace fake_cuda {

struct LaunchRecord {
  unsigned grid_x = 0, grid_y = 0, grid_z = 0, threads = 0, smem_bytes = 0;
  void* stream = nullptr;
  void* context = nullptr;       // in which it runs
  const void* params = nullptr;  // kernelParams[0]
  int first_word = 0;            // the first four bytes of that
  bool by_kernel = false;        // a CUkernel was given for the CUfunction
  bool programmatic = false;
  unsigned cluster_x = 1, cluster_y = 1, cluster_z = 1;
  bool cooperative = false;
};

// What cuTensorMapEncodeTiled writes here in place of a real map, by the numbers of CUtensorMapDataType and the like.
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

struct Control {
  long (*calls)(const char* function);  // null: of all functions
  void (*reset_calls)();
  void (*fail)(const char* function, int result);  // until called again with 0
  long (*launches)();                              // run, not captured; a graph's replay counts its launches
  LaunchRecord (*last_launch)();                   // run or captured

  void* (*make_context)(int device);  // as cuCtxCreate, but not current
  void (*destroy_context)(void* context);
  void* (*primary)(int device);        // retained, as by the CUDA runtime
  int (*primary_retains)(int device);  // how often anyone retained it
  void (*set_current)(void* context);  // cuCtxSetCurrent
  void* (*current)();
  int (*depth)();                                // of this thread's context stack
  void* (*make_blocking_stream)(void* context);  // waits for the legacy default stream
  void* (*make_stream)(void* context);

  void (*set_static_smem)(int bytes);     // of kernels, from now on
  void (*set_jit_log)(const char* text);  // what loading an image writes into the error log
  int (*opt_in_smem)(int device);         // of the kernel attributed last: -1 if never set
  int (*carveout)(int device);            // likewise
  size_t (*live_bytes)();                 // allocated and not freed
  int (*live_libraries)();
  bool (*image_was)(const void* bytes, size_t count);  // the image loaded last, up to and with its NUL
};

}  // namespace fake_cuda

extern "C" const fake_cuda::Control* fake_cuda_control();
