// Opens libcuda once in a process, fills the function table, and turns the driver's results into sentences. All other
// files of src/cuda use it. Nothing is opened before a GPU is needed.
#include "cuda/driver.h"

#include <dlfcn.h>

#include <atomic>
#include <mutex>
#include <type_traits>

#include "base/error.h"
#include "cpu/threads.h"

namespace rapt::cuda {
namespace {

constexpr const char* library_name = "libcuda.so.1";

constexpr const char* forked_sentence =
    "this process was forked after its parent had used a GPU: CUDA cannot be used in it (start it with exec or spawn, "
    "or use the GPU only after the fork)";

// The result of opening: a driver, or the reason why there is none.
struct Opened {
  Driver table;
  bool usable = false;
  std::string why;
  unsigned generation = 0;  // fork_generation() of the process that opened it
};

std::string version_text(int version) { return concat(version / 1000, ".", version % 1000 / 10); }

std::string result_text(const Driver& driver, Result result) {
  const char *name = nullptr, *text = nullptr;
  if (driver.cuGetErrorName(result, &name) != result::success || name == nullptr) return concat("CUDA error ", result);
  if (driver.cuGetErrorString(result, &text) != result::success || text == nullptr) return name;
  return concat(name, " (", text, ")");
}

// Calls cuGetProcAddress, and collects the names that it did not find.
struct Loader {
  using GetAddress = Result (*)(const char* name, void** address, int version, unsigned long long flags, int* status);
  GetAddress get_address;
  std::string missing;

  template <class Function>
  void load_if_there(Function*& slot, const char* name, int version) {
    void* address = nullptr;
    if (get_address(name, &address, version, legacy_functions, nullptr) != result::success) address = nullptr;
    slot = reinterpret_cast<Function*>(address);
  }
  template <class Function>
  void load(Function*& slot, const char* name, int version) {
    load_if_there(slot, name, version);
    if (slot == nullptr) missing += concat(missing.empty() ? "" : ", ", name);
  }
};

// The number behind each name is the CUDA version in which the function got the signature declared in driver.h.
void load_devices_and_contexts(Loader& loader, Driver& driver) {
  loader.load(driver.cuInit, "cuInit", 2000);
  loader.load(driver.cuGetErrorName, "cuGetErrorName", 6000);
  loader.load(driver.cuGetErrorString, "cuGetErrorString", 6000);
  loader.load(driver.cuDeviceGetCount, "cuDeviceGetCount", 2000);
  loader.load(driver.cuDeviceGet, "cuDeviceGet", 2000);
  loader.load(driver.cuDeviceGetName, "cuDeviceGetName", 2000);
  loader.load(driver.cuDeviceGetAttribute, "cuDeviceGetAttribute", 2000);
  loader.load(driver.cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000);
  loader.load(driver.cuDevicePrimaryCtxGetState, "cuDevicePrimaryCtxGetState", 7000);
  loader.load(driver.cuCtxGetCurrent, "cuCtxGetCurrent", 4000);
  loader.load(driver.cuCtxGetDevice, "cuCtxGetDevice", 2000);
  loader.load(driver.cuCtxPushCurrent, "cuCtxPushCurrent", 4000);
  loader.load(driver.cuCtxPopCurrent, "cuCtxPopCurrent", 4000);
  loader.load_if_there(driver.cuCtxSetLimit, "cuCtxSetLimit", 3010);
  loader.load_if_there(driver.cuCtxResetPersistingL2Cache, "cuCtxResetPersistingL2Cache", 11000);
}

void load_streams_and_graphs(Loader& loader, Driver& driver) {
  loader.load(driver.cuStreamCreate, "cuStreamCreate", 2000);
  loader.load(driver.cuStreamDestroy, "cuStreamDestroy", 4000);
  loader.load(driver.cuStreamSynchronize, "cuStreamSynchronize", 2000);
  loader.load(driver.cuStreamGetCtx, "cuStreamGetCtx", 9020);
  loader.load(driver.cuStreamGetId, "cuStreamGetId", 12000);
  loader.load(driver.cuStreamIsCapturing, "cuStreamIsCapturing", 10000);
  loader.load(driver.cuStreamBeginCapture, "cuStreamBeginCapture", 10010);
  loader.load(driver.cuStreamEndCapture, "cuStreamEndCapture", 10000);
  loader.load(driver.cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", 10010);
  loader.load(driver.cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags", 11040);
  loader.load(driver.cuGraphLaunch, "cuGraphLaunch", 10000);
  loader.load(driver.cuGraphExecDestroy, "cuGraphExecDestroy", 10000);
  loader.load(driver.cuGraphDestroy, "cuGraphDestroy", 10000);
  loader.load(driver.cuEventCreate, "cuEventCreate", 2000);
  loader.load(driver.cuEventDestroy, "cuEventDestroy", 4000);
  loader.load(driver.cuEventRecord, "cuEventRecord", 2000);
  loader.load(driver.cuEventSynchronize, "cuEventSynchronize", 2000);
  loader.load(driver.cuStreamWaitEvent, "cuStreamWaitEvent", 3020);
  loader.load(driver.cuEventElapsedTime, "cuEventElapsedTime", 2000);
}

void load_memory_and_kernels(Loader& loader, Driver& driver) {
  loader.load(driver.cuMemAlloc, "cuMemAlloc", 3020);
  loader.load(driver.cuMemFree, "cuMemFree", 3020);
  loader.load(driver.cuMemcpyHtoD, "cuMemcpyHtoD", 3020);
  loader.load(driver.cuMemcpyDtoH, "cuMemcpyDtoH", 3020);
  loader.load(driver.cuMemsetD8, "cuMemsetD8", 3020);
  loader.load(driver.cuMemsetD8Async, "cuMemsetD8Async", 3020);
  loader.load(driver.cuLibraryLoadData, "cuLibraryLoadData", 12000);
  loader.load(driver.cuLibraryUnload, "cuLibraryUnload", 12000);
  loader.load(driver.cuLibraryGetKernel, "cuLibraryGetKernel", 12000);
  loader.load_if_there(driver.cuLibraryGetGlobal, "cuLibraryGetGlobal", 12000);
  loader.load(driver.cuKernelGetFunction, "cuKernelGetFunction", 12000);
  loader.load(driver.cuKernelGetAttribute, "cuKernelGetAttribute", 12000);
  loader.load(driver.cuKernelSetAttribute, "cuKernelSetAttribute", 12000);
  loader.load(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor, "cuOccupancyMaxActiveBlocksPerMultiprocessor", 6050);
  loader.load(driver.cuLaunchKernelEx, "cuLaunchKernelEx", 11060);
  loader.load_if_there(driver.cuTensorMapEncodeTiled, "cuTensorMapEncodeTiled", 12000);
}

template <class Function>
Function* exported(void* library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

// Reads the version. Returns "" if rapt can use this driver.
std::string refuse_version(void* library, Driver& driver) {
  const auto get_version = exported<Result(int*)>(library, "cuDriverGetVersion");
  if (get_version == nullptr) return "it has no cuDriverGetVersion, so it is not an NVIDIA driver";
  if (const Result result = get_version(&driver.version); result != result::success)
    return concat("cuDriverGetVersion failed with CUDA error ", result);
  if (driver.version < oldest_version)
    return concat("this driver supports CUDA ", version_text(driver.version), "; rapt needs ",
                  version_text(oldest_version), " or later (driver 525.60 or later)");
  return "";
}

std::string fill_table(void* library, Driver& driver) {
  Loader loader{exported<std::remove_pointer_t<Loader::GetAddress>>(library, "cuGetProcAddress_v2"), ""};
  if (loader.get_address == nullptr) return "it has no cuGetProcAddress_v2";
  load_devices_and_contexts(loader, driver);
  load_streams_and_graphs(loader, driver);
  load_memory_and_kernels(loader, driver);
  return loader.missing.empty() ? "" : concat("CUDA ", version_text(driver.version), " lacks ", loader.missing);
}

std::string initialise(const Driver& driver) {
  const Result result = driver.cuInit(0);
  if (result == result::success) return "";
  const char* hint = "";
  if (result == result::not_initialized)
    hint = "; a process that was forked after its parent had used CUDA cannot use it";
  return concat("cuInit failed with ", result_text(driver, result), hint);
}

// Returns "" if `opened` holds a usable driver, else the failure.
std::string open_library(Opened& opened) {
  void* library = dlopen(library_name, RTLD_NOW | RTLD_LOCAL);  // never closed: it has threads
  if (library == nullptr) {
    const char* text = dlerror();
    return concat(text == nullptr ? library_name : text,
                  ": no usable NVIDIA driver on this machine; CPU tensors work without it");
  }
  std::string why = refuse_version(library, opened.table);
  if (why.empty()) why = fill_table(library, opened.table);
  if (why.empty()) why = initialise(opened.table);
  return why.empty() ? "" : concat(library_name, ": ", why);
}

std::atomic<const Opened*> result_of_opening{nullptr};

// Opens the driver on the first call. A failure is remembered, too. If one thread forks while another thread opens the
// driver, the mutex is locked in the child and never released. So the process that opens the driver is recorded first.
// If the driver is not open yet in a child of this process, the function returns null there and does not touch the
// mutex.
const Opened* open_once() {
  if (const Opened* opened = result_of_opening.load(std::memory_order_acquire)) return opened;
  static std::atomic<unsigned> opener{0};  // 1 + the process's fork generation
  static std::mutex mutex;
  const unsigned self = cpu::fork_generation() + 1;
  unsigned first = 0;
  if (!opener.compare_exchange_strong(first, self) && first != self) return nullptr;
  const std::lock_guard<std::mutex> lock(mutex);
  if (const Opened* opened = result_of_opening.load(std::memory_order_acquire)) return opened;
  auto opened = std::make_unique<Opened>();
  opened->generation = cpu::fork_generation();
  opened->why = open_library(*opened);
  opened->usable = opened->why.empty();
  result_of_opening.store(opened.get(), std::memory_order_release);
  return opened.release();  // kept until the process ends: destructors of static objects may still need it
}

}  // namespace

const Driver* find_driver(std::string* why) {
  const Opened* opened = open_once();
  if (opened != nullptr && opened->usable && opened->generation == cpu::fork_generation()) return &opened->table;
  if (why != nullptr) *why = opened == nullptr || opened->usable ? forked_sentence : opened->why;
  return nullptr;
}

const Driver& driver() {
  if (const Driver* found = find_driver()) return *found;
  std::string why;
  find_driver(&why);
  throw Error(ErrorCode::environment, why);
}

const Driver* opened_driver() noexcept {
  const Opened* opened = result_of_opening.load(std::memory_order_acquire);
  const bool usable = opened != nullptr && opened->usable && opened->generation == cpu::fork_generation();
  return usable ? &opened->table : nullptr;
}

void fail(const Driver& driver, Result result, const std::string& doing, const std::string& detail) {
  // The cause of these errors is an earlier kernel, of rapt or of the program. The context is lost.
  const bool lost = result >= result::illegal_address && result <= result::tensor_memory_leak &&
                    result != result::cooperative_too_large;
  const char* note = lost ? "; this may come from an earlier kernel of the same process" : "";
  const ErrorCode code = result == result::out_of_memory ? ErrorCode::out_of_memory : ErrorCode::device;
  throw Error(code, concat(doing, ": ", result_text(driver, result), note, detail));
}

int supported_cuda_major(const Driver& driver) { return driver.version / 1000; }

}  // namespace rapt::cuda
