// The part of the CUDA driver API that rapt uses: handles, structs, values, the function table. Declared here, so
// building rapt does not need cuda.h of a toolkit. Names of functions and values are NVIDIA's; layouts are valid from
// CUDA 12.0 on. Included by src/cuda/*.cpp, the fake libcuda of the tests, and lab code that needs calls beyond cuda.h.
#pragma once

#include <cstddef>
#include <string>

#include "cuda/cuda.h"

namespace rapt::cuda {

using Result = int;        // CUresult
using DeviceHandle = int;  // CUdevice
using ContextHandle = struct OpaqueContext*;
using LibraryHandle = struct OpaqueLibrary*;
using KernelHandle = struct OpaqueKernel*;      // independent of contexts
using FunctionHandle = struct OpaqueFunction*;  // a kernel in one context
using GraphHandle = void*;
using GraphExecHandle = void*;
using EventHandle = void*;

namespace result {
inline constexpr Result success = 0, out_of_memory = 2, not_initialized = 3, no_device = 100, illegal_address = 700,
                        cooperative_too_large = 720, tensor_memory_leak = 721, stream_capture_implicit = 906;
}

// Stream handles for "the default stream of the current context". Null has the same meaning.
inline const StreamHandle legacy_stream = reinterpret_cast<StreamHandle>(size_t{1});
inline const StreamHandle per_thread_stream = reinterpret_cast<StreamHandle>(size_t{2});

enum class DeviceAttribute : int {  // CUdevice_attribute
  sm_count = 16,
  pci_bus = 33,
  pci_device = 34,
  l2_bytes = 38,
  threads_per_sm = 39,
  pci_domain = 50,
  capability_major = 75,
  capability_minor = 76,
  smem_per_sm = 81,
  registers_per_sm = 82,
  smem_per_block = 97,  // the limit with opt-in
  persisting_l2_bytes = 108,
  l2_window_bytes = 109,
};

enum class FunctionAttribute : int {  // CUfunction_attribute
  max_threads = 0,
  static_smem_bytes = 1,
  local_bytes = 3,
  registers = 4,
  max_dynamic_smem_bytes = 8,
  smem_carveout_percent = 9,
};

enum class JitOption : int { error_log = 5, error_log_bytes = 6 };              // CUjit_option
enum class CaptureStatus : int { none = 0, active = 1, invalidated = 2 };       // CUstreamCaptureStatus
enum class CaptureMode : int { global = 0, thread_local_ = 1, relaxed = 2 };    // CUstreamCaptureMode
enum class Limit : int { persisting_l2_bytes = 6 };                             // CUlimit
enum class AccessProperty : int { normal = 0, streaming = 1, persisting = 2 };  // CUaccessProperty
enum class LaunchAttributeId : int {                                            // CUlaunchAttributeID
  access_policy_window = 1,
  cooperative = 2,
  cluster_dimension = 4,
  programmatic_stream_serialization = 6,
};

// CUtensorMapDataType, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill
enum class TensorMapElement : int { u8 = 0, f16 = 6, f32 = 7, bf16 = 9 };
enum class TensorMapInterleave : int { none = 0 };
enum class TensorMapSwizzle : int { none = 0, bytes_32 = 1, bytes_64 = 2, bytes_128 = 3 };
enum class TensorMapPromotion : int { none = 0, bytes_128 = 2 };
enum class TensorMapFill : int { zero = 0 };

inline constexpr unsigned stream_non_blocking = 1;         // CU_STREAM_NON_BLOCKING
inline constexpr unsigned long long legacy_functions = 1;  // CU_GET_PROC_ADDRESS_LEGACY_STREAM

struct LaunchAttribute {  // CUlaunchAttribute
  LaunchAttributeId id;
  union alignas(8) Value {
    char bytes[64];
    int programmatic_stream_serialization_allowed;
    int cooperative;
    struct {
      unsigned x, y, z;
    } cluster;
    struct {
      const void* begin;
      size_t bytes;
      float share;
      AccessProperty property, others;  // property: of the lines in the share; others: of all other lines
    } window;
  } value;
};
static_assert(sizeof(LaunchAttribute) == 72 && offsetof(LaunchAttribute, value) == 8);

struct LaunchConfig {  // CUlaunchConfig
  unsigned grid_x, grid_y, grid_z;
  unsigned block_x, block_y, block_z;
  unsigned smem_bytes;
  StreamHandle stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};
static_assert(sizeof(LaunchConfig) == 56 && offsetof(LaunchConfig, stream) == 32);

// driver.cpp asks cuGetProcAddress for a certain version of each function, because in later drivers the same name can
// mean another version.
struct Driver {
  int version = 0;  // the newest CUDA it supports: 12040 is 12.4

  Result (*cuInit)(unsigned flags);
  Result (*cuGetErrorName)(Result, const char** text);
  Result (*cuGetErrorString)(Result, const char** text);

  Result (*cuDeviceGetCount)(int* count);
  Result (*cuDeviceGet)(DeviceHandle*, int index);
  Result (*cuDeviceGetName)(char* name, int bytes, DeviceHandle);
  Result (*cuDeviceGetAttribute)(int* value, DeviceAttribute, DeviceHandle);

  Result (*cuDevicePrimaryCtxRetain)(ContextHandle*, DeviceHandle);
  Result (*cuDevicePrimaryCtxGetState)(DeviceHandle, unsigned* flags, int* active);
  Result (*cuCtxGetCurrent)(ContextHandle*);
  Result (*cuCtxGetDevice)(DeviceHandle*);  // the GPU of the current context
  Result (*cuCtxPushCurrent)(ContextHandle);
  Result (*cuCtxPopCurrent)(ContextHandle*);
  // Null if the driver lacks them: only the lab needs them.
  Result (*cuCtxSetLimit)(Limit, size_t value);
  Result (*cuCtxResetPersistingL2Cache)();

  Result (*cuStreamCreate)(StreamHandle*, unsigned flags);
  Result (*cuStreamDestroy)(StreamHandle);
  Result (*cuStreamSynchronize)(StreamHandle);
  Result (*cuStreamGetCtx)(StreamHandle, ContextHandle*);
  Result (*cuStreamGetId)(StreamHandle, unsigned long long* id);
  Result (*cuStreamIsCapturing)(StreamHandle, CaptureStatus*);
  Result (*cuStreamBeginCapture)(StreamHandle, CaptureMode);
  Result (*cuStreamEndCapture)(StreamHandle, GraphHandle*);
  Result (*cuThreadExchangeStreamCaptureMode)(CaptureMode*);

  Result (*cuGraphInstantiateWithFlags)(GraphExecHandle*, GraphHandle, unsigned long long flags);
  Result (*cuGraphLaunch)(GraphExecHandle, StreamHandle);
  Result (*cuGraphExecDestroy)(GraphExecHandle);
  Result (*cuGraphDestroy)(GraphHandle);

  Result (*cuEventCreate)(EventHandle*, unsigned flags);
  Result (*cuEventDestroy)(EventHandle);
  Result (*cuEventRecord)(EventHandle, StreamHandle);
  Result (*cuEventSynchronize)(EventHandle);
  Result (*cuStreamWaitEvent)(StreamHandle, EventHandle, unsigned flags);
  Result (*cuEventElapsedTime)(float* milliseconds, EventHandle begin, EventHandle end);

  Result (*cuMemAlloc)(DevicePtr*, size_t bytes);
  Result (*cuMemFree)(DevicePtr);
  Result (*cuMemcpyHtoD)(DevicePtr to, const void* from, size_t bytes);
  Result (*cuMemcpyDtoH)(void* to, DevicePtr from, size_t bytes);
  Result (*cuMemsetD8)(DevicePtr, unsigned char value, size_t count);
  Result (*cuMemsetD8Async)(DevicePtr, unsigned char value, size_t count, StreamHandle);

  Result (*cuLibraryLoadData)(LibraryHandle*, const void* image, JitOption* options, void** option_values,
                              unsigned option_count, int* library_options, void** library_option_values,
                              unsigned library_option_count);
  Result (*cuLibraryUnload)(LibraryHandle);
  Result (*cuLibraryGetKernel)(KernelHandle*, LibraryHandle, const char* name);
  // Searches the image in the current context. Null if the driver lacks this function: only kernels with time stamps
  // need it.
  Result (*cuLibraryGetGlobal)(DevicePtr*, size_t* bytes, LibraryHandle, const char* name);
  Result (*cuKernelGetFunction)(FunctionHandle*, KernelHandle);  // in the current context; loads it there
  Result (*cuKernelGetAttribute)(int* value, FunctionAttribute, KernelHandle, DeviceHandle);
  Result (*cuKernelSetAttribute)(FunctionAttribute, int value, KernelHandle, DeviceHandle);
  Result (*cuOccupancyMaxActiveBlocksPerMultiprocessor)(int* blocks, FunctionHandle, int threads, size_t smem_bytes);
  // Also accepts a KernelHandle that is cast to FunctionHandle. The context is the stream's, or the current one for a
  // default stream.
  Result (*cuLaunchKernelEx)(const LaunchConfig*, FunctionHandle, void** parameters, void** extra);

  // Null if the driver lacks it: only kernels that use tensor maps need it. sizes, box and element_strides have `rank`
  // elements, the innermost dimension first; strides (in bytes) has one element less.
  Result (*cuTensorMapEncodeTiled)(void* map, TensorMapElement, unsigned rank, void* address,
                                   const unsigned long long* sizes, const unsigned long long* strides,
                                   const unsigned* box, const unsigned* element_strides, TensorMapInterleave,
                                   TensorMapSwizzle, TensorMapPromotion, TensorMapFill);
};

// The oldest CUDA version whose driver has all functions above that must not be null.
inline constexpr int oldest_version = 12000;

// The maximum number of GPUs in one process.
inline constexpr int max_devices = 64;

// Throws Error{device} (Error{out_of_memory} if the driver reports that): "DOING: NAME (text)DETAIL".
[[noreturn]] void fail(const Driver& driver, Result result, const std::string& doing, const std::string& detail = "");

inline void check(const Driver& driver, Result result, const char* doing) {
  if (result != result::success) fail(driver, result, doing);
}

// For destructors. Null if the driver must not be called, as in a forked child. Never opens the driver and never
// throws.
const Driver* opened_driver() noexcept;

// The driver's handle of GPU `index`. Throws like device().
DeviceHandle device_handle(int index);

// The GPU whose primary context was made current by the innermost ContextScope of this thread. -1 if there is no scope
// or it uses another context.
int primary_in_scope() noexcept;

}  // namespace rapt::cuda
