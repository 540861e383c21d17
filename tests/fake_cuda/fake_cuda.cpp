// The stand-in for libcuda.so.1 (fake_cuda.h). It keeps contexts, streams, captures and memory by the rules of the
// driver's documentation, so code that breaks a rule fails here as on a GPU.
// Loaded by tests and by programs that run without a GPU. One process, any number of threads.
#include "fake_cuda.h"

#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "cuda/driver.h"

namespace {

using namespace rapt::cuda;
using fake_cuda::LaunchRecord;

constexpr Result ok = 0, invalid_value = 1, out_of_memory = 2, not_initialized = 3, no_device = 100,
                 invalid_device = 101, invalid_context = 201, context_is_destroyed = 709, invalid_handle = 400,
                 illegal_state = 401, not_ready = 600, capture_unsupported = 900, capture_invalidated = 901,
                 cooperative_too_large = 720, capture_implicit = 906, capture_wrong_thread = 908,
                 invalid_cluster_size = 912;

struct ErrorText {
  Result result;
  const char *name, *text;
};
constexpr ErrorText error_texts[] = {
    {ok, "CUDA_SUCCESS", "no error"},
    {invalid_value, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {out_of_memory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {not_initialized, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {no_device, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {invalid_device, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {invalid_context, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {218, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {invalid_handle, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {illegal_state, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {not_ready, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {context_is_destroyed, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {cooperative_too_large, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "too many blocks in cooperative launch"},
    {capture_unsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {capture_invalidated, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {capture_implicit, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {capture_wrong_thread, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {invalid_cluster_size, "CUDA_ERROR_INVALID_CLUSTER_SIZE", "invalid cluster size"},
};

// ---- State. Handles are addresses of these objects. They are never freed, so an old handle is detected.

struct Context {
  int device;
  bool alive = true;
};
struct Graph {
  std::vector<LaunchRecord> launches;
};
struct Stream {
  Context* context;
  unsigned long long id;
  bool blocking;
  CaptureStatus status = CaptureStatus::none;
  CaptureMode mode = CaptureMode::global;
  std::thread::id owner;
  Graph captured;
};
struct Library {
  bool alive = true;
  rapt::TraceBuffer trace_buffer{};
};
struct Kernel {
  int static_smem;
  Library* library;
  std::map<int, int> smem, carveout;  // key: device
};
struct Function {
  Kernel* kernel;
  Context* context;
};
struct Event {
  std::chrono::steady_clock::time_point at;
  bool recorded = false;
};
struct Gpu {
  int sm = 90;
  Context* primary = nullptr;
  int retains = 0;
};

int number_from_environment(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

struct State {
  std::recursive_mutex mutex;
  std::atomic<bool> initialised{false};
  std::vector<Gpu> gpus;
  std::vector<std::unique_ptr<Context>> contexts;
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<std::unique_ptr<Function>> functions;
  std::map<DevicePtr, size_t> memory;
  std::vector<std::unique_ptr<Library>> libraries;
  std::vector<std::unique_ptr<Kernel>> kernels;
  std::string image, jit_log;
  int static_smem = 0;
  size_t persisting_l2_bytes = 0;
  Kernel* last_attributed = nullptr;
  LaunchRecord last_launch;
  std::atomic<long> launches{0};

  State() : gpus(static_cast<size_t>(number_from_environment("FAKE_CUDA_DEVICES", 1))) {
    const char* sms = std::getenv("FAKE_CUDA_SM");
    std::istringstream list(sms == nullptr ? "90" : sms);
    int sm = 90;
    for (Gpu& gpu : gpus) {
      if (std::string word; std::getline(list, word, ',')) sm = std::atoi(word.c_str());
      gpu.sm = sm;
    }
  }
  static State& state() {
    static State& instance = *new State;
    return instance;
  }
};
State& state() { return State::state(); }

using Lock = std::lock_guard<std::recursive_mutex>;

thread_local std::vector<Context*> context_stack;

Context* current() { return context_stack.empty() ? nullptr : context_stack.back(); }
bool valid_device(int device) { return device >= 0 && device < static_cast<int>(state().gpus.size()); }
Gpu& gpu(int device) { return state().gpus[static_cast<size_t>(device)]; }

Stream* as_stream(StreamHandle handle) { return static_cast<Stream*>(handle); }
bool is_default(StreamHandle stream) { return reinterpret_cast<size_t>(stream) <= 2; }
bool is_legacy(StreamHandle stream) { return reinterpret_cast<size_t>(stream) <= 1; }
Context* context_of(StreamHandle stream) { return is_default(stream) ? current() : as_stream(stream)->context; }

// ---- The table of functions. Calls are counted and can be made to fail.

struct Entry {
  std::string name;
  int version;  // the CUDA version that introduced this signature
  void* address;
  std::atomic<long> calls{0};
  std::atomic<Result> failure{0};

  template <class F>
  Entry(const char* n, int v, F* Driver::*, F* function)
      : name(n), version(v), address(reinterpret_cast<void*>(function)) {}
};
std::vector<std::unique_ptr<Entry>>& table();

Entry* find(const std::string& name) {
  for (const auto& entry : table())
    if (entry->name == name) return entry.get();
  return nullptr;
}

// Every function calls this first. It counts the call. If it does not return ok, the function must return its result.
Result enter(Entry& entry) {
  ++entry.calls;
  if (const Result failure = entry.failure) return failure;
  return state().initialised ? ok : not_initialized;
}

// ---- Captures.

template <class Visit>
void each_capturing(const Visit& visit) {
  for (const auto& stream : state().streams)
    if (stream->status != CaptureStatus::none) visit(*stream);
}

void invalidate(Stream& stream) { stream.status = CaptureStatus::invalidated; }

thread_local CaptureMode mode_of_thread = CaptureMode::global;

// For calls that are not allowed while this thread captures (in global mode: while any thread captures). Invalidates
// the capture.
Result unsafe_while_capturing() {
  Result result = ok;
  if (mode_of_thread == CaptureMode::relaxed) return result;
  each_capturing([&](Stream& stream) {
    const bool own = stream.owner == std::this_thread::get_id() && stream.mode != CaptureMode::relaxed;
    if (!own && stream.mode != CaptureMode::global) return;
    invalidate(stream);
    result = capture_unsupported;
  });
  return result;
}

// An operation on the legacy stream would have to wait for blocking streams of its context. So it is not allowed while
// one of them captures.
Result legacy_conflict(StreamHandle stream, bool spoils) {
  Result result = ok;
  if (!is_legacy(stream)) return result;
  each_capturing([&](Stream& other) {
    if (!other.blocking || other.context != current()) return;
    if (spoils) invalidate(other);
    result = capture_implicit;
  });
  return result;
}

// ---- Errors, devices, contexts.

Result cuInit(unsigned) {
  static Entry& self = *find("cuInit");
  ++self.calls;
  if (const Result failure = self.failure) return failure;
  if (state().gpus.empty()) return no_device;
  // The rule of a real driver: if a process has initialised the driver, its child can never initialise it.
  static std::atomic<bool> forked{false};
  static const int registered = pthread_atfork(nullptr, nullptr, [] {
    forked = true;
    state().initialised = false;
  });
  if (registered != 0 || forked) return not_initialized;
  state().initialised = true;
  return ok;
}

const ErrorText* error_text(Result result) {
  for (const ErrorText& row : error_texts)
    if (row.result == result) return &row;
  return nullptr;
}

Result cuGetErrorName(Result result, const char** text) {
  const ErrorText* row = error_text(result);
  *text = row == nullptr ? nullptr : row->name;
  return row == nullptr ? invalid_value : ok;
}

Result cuGetErrorString(Result result, const char** text) {
  const ErrorText* row = error_text(result);
  *text = row == nullptr ? nullptr : row->text;
  return row == nullptr ? invalid_value : ok;
}

Result cuDeviceGetCount(int* count) {
  static Entry& self = *find("cuDeviceGetCount");
  if (const Result result = enter(self)) return result;
  *count = static_cast<int>(state().gpus.size());
  return ok;
}

Result cuDeviceGet(DeviceHandle* device, int index) {
  static Entry& self = *find("cuDeviceGet");
  if (const Result result = enter(self)) return result;
  *device = index;
  return valid_device(index) ? ok : invalid_device;
}

Result cuDeviceGetName(char* name, int bytes, DeviceHandle device) {
  static Entry& self = *find("cuDeviceGetName");
  if (const Result result = enter(self)) return result;
  if (!valid_device(device)) return invalid_device;
  const std::string text = "Fake GPU sm_" + std::to_string(gpu(device).sm);
  std::strncpy(name, text.c_str(), static_cast<size_t>(bytes));
  return ok;
}

// Plausible values for a GPU of each compute capability. The numbers of multiprocessors are those of A100, A10, L4,
// H100 and RTX 5090.
int plausible(int sm, DeviceAttribute which) {
  const bool large = sm == 80 || sm == 90 || sm / 10 == 10;
  const int smem_kib = sm == 80 ? 164 : large ? 228 : 100;
  switch (which) {
    case DeviceAttribute::sm_count: return sm == 80 ? 108 : sm == 86 ? 72 : sm == 89 ? 58 : large ? 132 : 170;
    case DeviceAttribute::pci_domain: return 2;
    case DeviceAttribute::pci_bus: return 0x3b;
    case DeviceAttribute::pci_device: return 1;
    case DeviceAttribute::l2_bytes: return (large ? 50 : 48) << 20;
    case DeviceAttribute::threads_per_sm: return large ? 2048 : 1536;
    case DeviceAttribute::capability_major: return sm / 10;
    case DeviceAttribute::capability_minor: return sm % 10;
    case DeviceAttribute::smem_per_sm: return smem_kib << 10;
    case DeviceAttribute::registers_per_sm: return 65536;
    case DeviceAttribute::smem_per_block: return (smem_kib - 1) << 10;
    case DeviceAttribute::persisting_l2_bytes: return 32 << 20;
    case DeviceAttribute::l2_window_bytes: return 128 << 20;
  }
  return 0;
}

Result cuDeviceGetAttribute(int* value, DeviceAttribute which, DeviceHandle device) {
  static Entry& self = *find("cuDeviceGetAttribute");
  if (const Result result = enter(self)) return result;
  if (!valid_device(device)) return invalid_device;
  *value = plausible(gpu(device).sm, which);
  return *value == 0 && which != DeviceAttribute::capability_minor ? invalid_value : ok;
}

Context* make_context(int device) {
  const Lock lock(state().mutex);
  state().contexts.push_back(std::make_unique<Context>(Context{device}));
  return state().contexts.back().get();
}

Context* retain(int device) {
  const Lock lock(state().mutex);
  Gpu& which = gpu(device);
  if (which.primary == nullptr) which.primary = make_context(device);
  ++which.retains;
  return which.primary;
}

Result cuDevicePrimaryCtxRetain(ContextHandle* context, DeviceHandle device) {
  static Entry& self = *find("cuDevicePrimaryCtxRetain");
  if (const Result result = enter(self)) return result;
  if (!valid_device(device)) return invalid_device;
  *context = reinterpret_cast<ContextHandle>(retain(device));
  return ok;
}

Result cuDevicePrimaryCtxGetState(DeviceHandle device, unsigned* flags, int* active) {
  static Entry& self = *find("cuDevicePrimaryCtxGetState");
  if (const Result result = enter(self)) return result;
  if (!valid_device(device)) return invalid_device;
  const Lock lock(state().mutex);
  *flags = 0;
  *active = gpu(device).primary != nullptr;
  return ok;
}

Result cuCtxGetCurrent(ContextHandle* context) {
  static Entry& self = *find("cuCtxGetCurrent");
  if (const Result result = enter(self)) return result;
  *context = reinterpret_cast<ContextHandle>(current());
  return ok;
}

Result cuCtxGetDevice(DeviceHandle* device) {
  static Entry& self = *find("cuCtxGetDevice");
  if (const Result result = enter(self)) return result;
  if (current() == nullptr) return invalid_context;
  *device = current()->device;
  return ok;
}

Result cuCtxPushCurrent(ContextHandle handle) {
  static Entry& self = *find("cuCtxPushCurrent");
  if (const Result result = enter(self)) return result;
  Context* context = reinterpret_cast<Context*>(handle);
  if (context == nullptr) return invalid_context;
  if (!context->alive) return context_is_destroyed;
  context_stack.push_back(context);
  return ok;
}

Result cuCtxPopCurrent(ContextHandle* context) {
  static Entry& self = *find("cuCtxPopCurrent");
  if (const Result result = enter(self)) return result;
  if (context_stack.empty()) return invalid_context;
  *context = reinterpret_cast<ContextHandle>(current());
  context_stack.pop_back();
  return ok;
}

Result cuCtxSetLimit(Limit limit, size_t value) {
  static Entry& self = *find("cuCtxSetLimit");
  if (const Result result = enter(self)) return result;
  if (current() == nullptr) return invalid_context;
  const int most = plausible(gpu(current()->device).sm, DeviceAttribute::persisting_l2_bytes);
  if (limit != Limit::persisting_l2_bytes || value > static_cast<size_t>(most)) return invalid_value;
  state().persisting_l2_bytes = value;
  return ok;
}

Result cuCtxResetPersistingL2Cache() {
  static Entry& self = *find("cuCtxResetPersistingL2Cache");
  if (const Result result = enter(self)) return result;
  return current() == nullptr ? invalid_context : ok;
}

// ---- Streams, graphs, events.

Stream* make_stream(Context* context, bool blocking) {
  const Lock lock(state().mutex);
  static unsigned long long ids = 100;
  state().streams.push_back(std::make_unique<Stream>(Stream{context, ids++, blocking, {}, {}, {}, {}}));
  return state().streams.back().get();
}

Result cuStreamCreate(StreamHandle* stream, unsigned flags) {
  static Entry& self = *find("cuStreamCreate");
  if (const Result result = enter(self)) return result;
  if (current() == nullptr) return invalid_context;
  *stream = make_stream(current(), (flags & stream_non_blocking) == 0);
  return ok;
}

Result cuStreamDestroy(StreamHandle stream) {
  static Entry& self = *find("cuStreamDestroy");
  if (const Result result = enter(self)) return result;
  return is_default(stream) ? invalid_handle : ok;
}

Result cuStreamSynchronize(StreamHandle stream) {
  static Entry& self = *find("cuStreamSynchronize");
  if (const Result result = enter(self)) return result;
  static const bool hangs = std::getenv("FAKE_CUDA_HANG") != nullptr;
  while (hangs && state().launches > 0) pause();
  const Lock lock(state().mutex);
  if (context_of(stream) == nullptr) return invalid_context;
  if (const Result result = legacy_conflict(stream, true)) return result;
  if (is_default(stream) || as_stream(stream)->status == CaptureStatus::none) return ok;
  invalidate(*as_stream(stream));
  return capture_unsupported;
}

Result cuStreamGetCtx(StreamHandle stream, ContextHandle* context) {
  static Entry& self = *find("cuStreamGetCtx");
  if (const Result result = enter(self)) return result;
  *context = reinterpret_cast<ContextHandle>(context_of(stream));
  return *context == nullptr ? invalid_context : ok;
}

Result cuStreamGetId(StreamHandle stream, unsigned long long* id) {
  static Entry& self = *find("cuStreamGetId");
  if (const Result result = enter(self)) return result;
  if (!is_default(stream)) {
    if (as_stream(stream)->status != CaptureStatus::none) {
      invalidate(*as_stream(stream));
      return capture_unsupported;
    }
    *id = as_stream(stream)->id;
    return ok;
  }
  if (current() == nullptr) return invalid_context;
  *id = 1 + static_cast<unsigned long long>(current()->device) * 2 + (is_legacy(stream) ? 0 : 1);
  return ok;
}

Result cuStreamIsCapturing(StreamHandle stream, CaptureStatus* status) {
  static Entry& self = *find("cuStreamIsCapturing");
  if (const Result result = enter(self)) return result;
  const Lock lock(state().mutex);
  if (const Result result = legacy_conflict(stream, false)) return result;
  *status = is_default(stream) ? CaptureStatus::none : as_stream(stream)->status;
  return ok;
}

Result cuStreamBeginCapture(StreamHandle handle, CaptureMode mode) {
  static Entry& self = *find("cuStreamBeginCapture");
  if (const Result result = enter(self)) return result;
  const Lock lock(state().mutex);
  if (is_default(handle)) return capture_unsupported;
  Stream& stream = *as_stream(handle);
  if (stream.status != CaptureStatus::none) return illegal_state;
  stream.status = CaptureStatus::active;
  stream.mode = mode;
  stream.owner = std::this_thread::get_id();
  stream.captured = Graph{};
  return ok;
}

Result cuStreamEndCapture(StreamHandle handle, GraphHandle* graph) {
  static Entry& self = *find("cuStreamEndCapture");
  if (const Result result = enter(self)) return result;
  const Lock lock(state().mutex);
  *graph = nullptr;
  if (is_default(handle) || as_stream(handle)->status == CaptureStatus::none) return illegal_state;
  Stream& stream = *as_stream(handle);
  if (stream.mode != CaptureMode::relaxed && stream.owner != std::this_thread::get_id()) return capture_wrong_thread;
  const bool whole = stream.status == CaptureStatus::active;
  stream.status = CaptureStatus::none;
  if (whole) *graph = new Graph(stream.captured);
  return whole ? ok : capture_invalidated;
}

Result cuThreadExchangeStreamCaptureMode(CaptureMode* mode) {
  static Entry& self = *find("cuThreadExchangeStreamCaptureMode");
  if (const Result result = enter(self)) return result;
  std::swap(*mode, mode_of_thread);
  return ok;
}

Result cuGraphInstantiateWithFlags(GraphExecHandle* executable, GraphHandle graph, unsigned long long) {
  static Entry& self = *find("cuGraphInstantiateWithFlags");
  if (const Result result = enter(self)) return result;
  *executable = new Graph(*static_cast<Graph*>(graph));
  return ok;
}

Result cuGraphLaunch(GraphExecHandle executable, StreamHandle stream) {
  static Entry& self = *find("cuGraphLaunch");
  if (const Result result = enter(self)) return result;
  if (context_of(stream) == nullptr) return invalid_context;
  state().launches += static_cast<long>(static_cast<Graph*>(executable)->launches.size());
  return ok;
}

Result cuGraphExecDestroy(GraphExecHandle executable) {
  static Entry& self = *find("cuGraphExecDestroy");
  if (const Result result = enter(self)) return result;
  delete static_cast<Graph*>(executable);
  return ok;
}

Result cuGraphDestroy(GraphHandle graph) {
  static Entry& self = *find("cuGraphDestroy");
  if (const Result result = enter(self)) return result;
  delete static_cast<Graph*>(graph);
  return ok;
}

Result cuEventCreate(EventHandle* event, unsigned) {
  static Entry& self = *find("cuEventCreate");
  if (const Result result = enter(self)) return result;
  if (current() == nullptr) return invalid_context;
  *event = new Event;
  return ok;
}

Result cuEventDestroy(EventHandle event) {
  static Entry& self = *find("cuEventDestroy");
  if (const Result result = enter(self)) return result;
  delete static_cast<Event*>(event);
  return ok;
}

Result cuEventRecord(EventHandle event, StreamHandle stream) {
  static Entry& self = *find("cuEventRecord");
  if (const Result result = enter(self)) return result;
  if (context_of(stream) == nullptr) return invalid_context;
  *static_cast<Event*>(event) = {std::chrono::steady_clock::now(), true};
  return ok;
}

Result cuEventSynchronize(EventHandle) {
  static Entry& self = *find("cuEventSynchronize");
  return enter(self);
}

Result cuStreamWaitEvent(StreamHandle stream, EventHandle event, unsigned) {
  static Entry& self = *find("cuStreamWaitEvent");
  if (const Result result = enter(self)) return result;
  if (event == nullptr) return invalid_handle;
  return context_of(stream) == nullptr ? invalid_context : ok;
}

Result cuEventElapsedTime(float* milliseconds, EventHandle begin, EventHandle end) {
  static Entry& self = *find("cuEventElapsedTime");
  if (const Result result = enter(self)) return result;
  const Event &first = *static_cast<Event*>(begin), &second = *static_cast<Event*>(end);
  if (!first.recorded || !second.recorded) return invalid_handle;
  *milliseconds = std::chrono::duration<float, std::milli>(second.at - first.at).count();
  return ok;
}

// ---- Memory.

constexpr size_t memory_bytes = size_t{64} << 30;

Result cuMemAlloc(DevicePtr* address, size_t bytes) {
  static Entry& self = *find("cuMemAlloc");
  if (const Result result = enter(self)) return result;
  const Lock lock(state().mutex);
  if (current() == nullptr) return invalid_context;
  if (bytes == 0) return invalid_value;
  if (const Result result = unsafe_while_capturing()) return result;
  void* memory = bytes > memory_bytes ? nullptr : std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (memory == nullptr) return out_of_memory;
  *address = reinterpret_cast<DevicePtr>(memory);
  state().memory[*address] = bytes;
  return ok;
}

Result cuMemFree(DevicePtr address) {
  static Entry& self = *find("cuMemFree");
  if (const Result result = enter(self)) return result;
  const Lock lock(state().mutex);
  if (current() == nullptr) return invalid_context;
  if (const Result result = unsafe_while_capturing()) return result;
  if (state().memory.erase(address) == 0) return invalid_value;
  std::free(reinterpret_cast<void*>(address));
  return ok;
}

// True if the range lies in one allocation.
bool allocated(DevicePtr address, size_t bytes) {
  auto after = state().memory.upper_bound(address);
  if (after == state().memory.begin()) return false;
  const auto& [begin, size] = *std::prev(after);
  return address - begin <= size && bytes <= size - (address - begin);
}

// The checks for a synchronous copy or fill.
Result enter_copy(Entry& self, DevicePtr address, size_t bytes) {
  if (const Result result = enter(self)) return result;
  if (current() == nullptr) return invalid_context;
  if (const Result result = unsafe_while_capturing()) return result;
  if (const Result result = legacy_conflict(nullptr, true)) return result;
  return allocated(address, bytes) ? ok : invalid_value;
}

Result cuMemcpyHtoD(DevicePtr to, const void* from, size_t bytes) {
  static Entry& self = *find("cuMemcpyHtoD");
  const Lock lock(state().mutex);
  if (const Result result = enter_copy(self, to, bytes)) return result;
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  return ok;
}

Result cuMemcpyDtoH(void* to, DevicePtr from, size_t bytes) {
  static Entry& self = *find("cuMemcpyDtoH");
  const Lock lock(state().mutex);
  if (const Result result = enter_copy(self, from, bytes)) return result;
  std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return ok;
}

Result cuMemsetD8(DevicePtr to, unsigned char value, size_t count) {
  static Entry& self = *find("cuMemsetD8");
  const Lock lock(state().mutex);
  if (const Result result = enter_copy(self, to, count)) return result;
  std::memset(reinterpret_cast<void*>(to), value, count);
  return ok;
}

Result cuMemsetD8Async(DevicePtr to, unsigned char value, size_t count, StreamHandle stream) {
  static Entry& self = *find("cuMemsetD8Async");
  if (const Result result = enter(self)) return result;
  const Lock lock(state().mutex);
  if (context_of(stream) == nullptr) return invalid_context;
  if (const Result result = legacy_conflict(stream, true)) return result;
  if (!allocated(to, count)) return invalid_value;
  if (is_default(stream) || as_stream(stream)->status == CaptureStatus::none)
    std::memset(reinterpret_cast<void*>(to), value, count);
  return ok;
}

// ---- Libraries, kernels, launches.

void write_jit_log(const JitOption* options, void** values, unsigned count) {
  char* text = nullptr;
  size_t bytes = 0;
  for (unsigned i = 0; i < count; ++i) {
    if (options[i] == JitOption::error_log) text = static_cast<char*>(values[i]);
    if (options[i] == JitOption::error_log_bytes) bytes = reinterpret_cast<size_t>(values[i]);
  }
  if (text == nullptr || bytes == 0) return;
  const size_t written = std::min(bytes - 1, state().jit_log.size());
  std::memcpy(text, state().jit_log.data(), written);
  text[written] = '\0';
}

Result cuLibraryLoadData(LibraryHandle* library, const void* image, JitOption* options, void** values, unsigned count,
                         int*, void**, unsigned) {
  static Entry& self = *find("cuLibraryLoadData");
  const Lock lock(state().mutex);
  write_jit_log(options, values, count);
  if (const Result result = enter(self)) return result;
  state().image = static_cast<const char*>(image);  // copies up to the NUL
  state().libraries.push_back(std::make_unique<Library>());
  *library = reinterpret_cast<LibraryHandle>(state().libraries.back().get());
  return ok;
}

Result cuLibraryUnload(LibraryHandle handle) {
  static Entry& self = *find("cuLibraryUnload");
  if (const Result result = enter(self)) return result;
  Library* library = reinterpret_cast<Library*>(handle);
  if (!library->alive) return invalid_handle;
  library->alive = false;
  return ok;
}

Result cuLibraryGetKernel(KernelHandle* kernel, LibraryHandle library, const char*) {
  static Entry& self = *find("cuLibraryGetKernel");
  if (const Result result = enter(self)) return result;
  const Lock lock(state().mutex);
  state().kernels.push_back(
      std::make_unique<Kernel>(Kernel{state().static_smem, reinterpret_cast<Library*>(library), {}, {}}));
  *kernel = reinterpret_cast<KernelHandle>(state().kernels.back().get());
  return ok;
}

// Every image has the variable of kernels with time stamps.
Result cuLibraryGetGlobal(DevicePtr* address, size_t* bytes, LibraryHandle handle, const char* name) {
  static Entry& self = *find("cuLibraryGetGlobal");
  if (const Result result = enter(self)) return result;
  if (current() == nullptr) return invalid_context;
  constexpr Result not_found = 500;
  if (std::strcmp(name, "rapt_trace_buffer") != 0) return not_found;
  const Lock lock(state().mutex);
  Library* library = reinterpret_cast<Library*>(handle);
  *address = reinterpret_cast<DevicePtr>(&library->trace_buffer);
  *bytes = sizeof library->trace_buffer;
  state().memory[*address] = *bytes;
  return ok;
}

Result cuKernelGetFunction(FunctionHandle* function, KernelHandle kernel) {
  static Entry& self = *find("cuKernelGetFunction");
  if (const Result result = enter(self)) return result;
  if (current() == nullptr) return invalid_context;
  const Lock lock(state().mutex);
  state().functions.push_back(std::make_unique<Function>(Function{reinterpret_cast<Kernel*>(kernel), current()}));
  *function = reinterpret_cast<FunctionHandle>(state().functions.back().get());
  return ok;
}

Result cuKernelGetAttribute(int* value, FunctionAttribute which, KernelHandle kernel, DeviceHandle device) {
  static Entry& self = *find("cuKernelGetAttribute");
  if (const Result result = enter(self)) return result;
  if (!valid_device(device)) return invalid_device;
  switch (which) {
    case FunctionAttribute::max_threads: *value = 1024; return ok;
    case FunctionAttribute::static_smem_bytes: *value = reinterpret_cast<Kernel*>(kernel)->static_smem; return ok;
    case FunctionAttribute::local_bytes: *value = 0; return ok;
    case FunctionAttribute::registers: *value = 64; return ok;
    default: return invalid_value;
  }
}

Result cuKernelSetAttribute(FunctionAttribute which, int value, KernelHandle handle, DeviceHandle device) {
  static Entry& self = *find("cuKernelSetAttribute");
  if (const Result result = enter(self)) return result;
  if (!valid_device(device)) return invalid_device;
  const Lock lock(state().mutex);
  Kernel& kernel = *reinterpret_cast<Kernel*>(handle);
  state().last_attributed = &kernel;
  if (which == FunctionAttribute::smem_carveout_percent) {
    kernel.carveout[device] = value;
    return ok;
  }
  const int limit = plausible(gpu(device).sm, DeviceAttribute::smem_per_block) - kernel.static_smem;
  if (which != FunctionAttribute::max_dynamic_smem_bytes || value < 0 || value > limit) return invalid_value;
  kernel.smem[device] = value;
  return ok;
}

// A function handle can also be the handle of a kernel.
struct Callee {
  Kernel* kernel;
  Context* context;  // null means any context
};
Callee callee(FunctionHandle handle) {
  for (const auto& function : state().functions)
    if (reinterpret_cast<FunctionHandle>(function.get()) == handle) return {function->kernel, function->context};
  for (const auto& kernel : state().kernels)
    if (reinterpret_cast<FunctionHandle>(kernel.get()) == handle) return {kernel.get(), nullptr};
  return {nullptr, nullptr};
}

int blocks_per_sm(const Kernel& kernel, int sm, int threads, size_t smem_bytes) {
  const int by_threads = plausible(sm, DeviceAttribute::threads_per_sm) / threads;
  const int a_block = static_cast<int>(smem_bytes) + kernel.static_smem + 1024;
  return std::min(by_threads, plausible(sm, DeviceAttribute::smem_per_sm) / a_block);
}

Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, FunctionHandle function, int threads,
                                                   size_t smem_bytes) {
  static Entry& self = *find("cuOccupancyMaxActiveBlocksPerMultiprocessor");
  if (const Result result = enter(self)) return result;
  const Lock lock(state().mutex);
  const Kernel* kernel = callee(function).kernel;
  if (kernel == nullptr) return invalid_handle;
  if (current() == nullptr) return invalid_context;
  *blocks = blocks_per_sm(*kernel, gpu(current()->device).sm, threads, smem_bytes);
  return ok;
}

Result check_launch(const LaunchConfig& config, const Kernel& kernel, int device) {
  const auto within = [](unsigned value, unsigned limit) { return value >= 1 && value <= limit; };
  if (!within(config.grid_x, 0x7fffffff) || !within(config.grid_y, 65535) || !within(config.grid_z, 65535))
    return invalid_value;
  if (!within(config.block_x, 1024) || config.block_y != 1 || config.block_z != 1) return invalid_value;
  const auto allowed = kernel.smem.find(device);
  const int limit = allowed == kernel.smem.end() ? (48 << 10) - kernel.static_smem : allowed->second;
  return static_cast<int>(config.smem_bytes) <= limit ? ok : invalid_value;
}

Result check_cluster(const LaunchConfig& config, const decltype(LaunchAttribute::Value::cluster)& cluster, int sm) {
  constexpr unsigned portable = 8;  // a larger cluster needs a kernel attribute that rapt never sets
  for (const unsigned side : {cluster.x, cluster.y, cluster.z})
    if (side == 0 || side > portable) return invalid_cluster_size;
  const bool divides =
      config.grid_x % cluster.x == 0 && config.grid_y % cluster.y == 0 && config.grid_z % cluster.z == 0;
  return sm >= 90 && divides && cluster.x * cluster.y * cluster.z <= portable ? ok : invalid_cluster_size;
}

// All blocks of a cooperative launch must be resident at once.
Result check_cooperative(const LaunchConfig& config, const Kernel& kernel, int sm) {
  const auto resident =
      static_cast<unsigned long long>(blocks_per_sm(kernel, sm, static_cast<int>(config.block_x), config.smem_bytes)) *
      static_cast<unsigned>(plausible(sm, DeviceAttribute::sm_count));
  const unsigned long long plane = static_cast<unsigned long long>(config.grid_x) * config.grid_y;
  return plane <= resident && plane * config.grid_z <= resident ? ok : cooperative_too_large;
}

Result check_window(const decltype(LaunchAttribute::Value::window)& window, int sm) {
  const bool fits = window.bytes <= static_cast<size_t>(plausible(sm, DeviceAttribute::l2_window_bytes));
  const bool known = window.property == AccessProperty::persisting && window.others == AccessProperty::normal;
  return fits && known && window.share >= 0.0f && window.share <= 1.0f ? ok : invalid_value;
}

Result check_attributes(const LaunchConfig& config, const Kernel& kernel, int sm) {
  for (unsigned i = 0; i < config.attribute_count; ++i) {
    const LaunchAttribute& attribute = config.attributes[i];
    Result result = ok;
    switch (attribute.id) {
      case LaunchAttributeId::programmatic_stream_serialization: break;
      case LaunchAttributeId::cluster_dimension: result = check_cluster(config, attribute.value.cluster, sm); break;
      case LaunchAttributeId::access_policy_window: result = check_window(attribute.value.window, sm); break;
      case LaunchAttributeId::cooperative:
        if (attribute.value.cooperative != 0) result = check_cooperative(config, kernel, sm);
        break;
      default: result = invalid_value;
    }
    if (result != ok) return result;
  }
  return ok;
}

void record_attribute(const LaunchAttribute& attribute, LaunchRecord& record) {
  switch (attribute.id) {
    case LaunchAttributeId::programmatic_stream_serialization:
      record.programmatic = attribute.value.programmatic_stream_serialization_allowed != 0;
      break;
    case LaunchAttributeId::cluster_dimension:
      record.cluster_x = attribute.value.cluster.x;
      record.cluster_y = attribute.value.cluster.y;
      record.cluster_z = attribute.value.cluster.z;
      break;
    case LaunchAttributeId::access_policy_window:
      record.window_begin = attribute.value.window.begin;
      record.window_bytes = attribute.value.window.bytes;
      record.window_share = attribute.value.window.share;
      break;
    case LaunchAttributeId::cooperative: record.cooperative = attribute.value.cooperative != 0; break;
  }
}

LaunchRecord record_of(const LaunchConfig& config, const Context* context, bool by_kernel, void** parameters) {
  LaunchRecord record{config.grid_x, config.grid_y, config.grid_z, config.block_x, config.smem_bytes};
  record.stream = config.stream;
  record.context = const_cast<Context*>(context);
  record.params = parameters[0];
  if (parameters[0] != nullptr) std::memcpy(&record.first_word, parameters[0], sizeof record.first_word);
  record.by_kernel = by_kernel;
  for (unsigned i = 0; i < config.attribute_count; ++i) record_attribute(config.attributes[i], record);
  return record;
}

// Does nothing without $FAKE_CUDA_RUN.
void run_on_cpu(const LaunchRecord& record, const Kernel& kernel) {
  static const fake_cuda::Run run = [] {
    const char* const path = std::getenv("FAKE_CUDA_RUN");
    void* const library = path == nullptr ? nullptr : dlopen(path, RTLD_NOW | RTLD_LOCAL);
    return library == nullptr ? nullptr : reinterpret_cast<fake_cuda::Run>(dlsym(library, "fake_cuda_run"));
  }();
  if (run != nullptr)
    run(record.params, record.grid_x, record.grid_y, record.grid_z, record.threads, record.smem_bytes,
        kernel.library->trace_buffer);
}

Result cuLaunchKernelEx(const LaunchConfig* config, FunctionHandle function, void** parameters, void**) {
  static Entry& self = *find("cuLaunchKernelEx");
  if (const Result result = enter(self)) return result;
  const Lock lock(state().mutex);
  const Callee called = callee(function);
  Context* context = context_of(config->stream);
  if (called.kernel == nullptr) return invalid_handle;
  if (context == nullptr) return invalid_context;
  if (called.context != nullptr && called.context != context) return invalid_handle;
  if (const Result result = check_launch(*config, *called.kernel, context->device)) return result;
  if (const Result result = check_attributes(*config, *called.kernel, gpu(context->device).sm)) return result;
  if (const Result result = legacy_conflict(config->stream, true)) return result;
  const LaunchRecord record = record_of(*config, context, called.context == nullptr, parameters);
  state().last_launch = record;
  const CaptureStatus status = is_default(config->stream) ? CaptureStatus::none : as_stream(config->stream)->status;
  if (status == CaptureStatus::invalidated) return capture_invalidated;
  if (status == CaptureStatus::active)
    as_stream(config->stream)->captured.launches.push_back(record);
  else
    ++state().launches, run_on_cpu(record, *called.kernel);
  return ok;
}

// ---- Tensor maps: the rules of cuda.h for elements of whole bytes without interleaving, which rapt uses.

bool known_tensor_map_words(const fake_cuda::TensorMapRecord& map) {
  const bool known = map.element_type <= 12 && map.swizzle <= 3 && map.l2_promotion <= 3;
  return known && map.element_bytes() != 0 && map.interleave == 0 && map.fill <= 1;
}

// A row of a box in shared memory must consist of 16-byte pieces and fit in the swizzled span.
bool box_row_fits(const fake_cuda::TensorMapRecord& map) {
  const unsigned row = map.box[0] * map.element_bytes(), span = map.swizzle == 0 ? row : 16u << map.swizzle;
  return row % 16 == 0 && row <= span;
}

Result judge(const fake_cuda::TensorMapRecord& map, const unsigned* element_strides) {
  if (map.rank < 1 || map.rank > 5 || !known_tensor_map_words(map) || map.address % 16 != 0) return invalid_value;
  for (unsigned i = 0; i < map.rank; ++i) {
    if (map.sizes[i] < 1 || map.sizes[i] > 1ull << 32 || map.box[i] < 1 || map.box[i] > 256) return invalid_value;
    if (element_strides[i] < 1 || element_strides[i] > 8) return invalid_value;
    if (i > 0 && (map.strides[i - 1] % 16 != 0 || map.strides[i - 1] >= 1ull << 40)) return invalid_value;
  }
  return box_row_fits(map) ? ok : invalid_value;
}

Result cuTensorMapEncodeTiled(void* to, TensorMapElement type, unsigned rank, void* address,
                              const unsigned long long* sizes, const unsigned long long* strides, const unsigned* box,
                              const unsigned* element_strides, TensorMapInterleave interleave, TensorMapSwizzle swizzle,
                              TensorMapPromotion promotion, TensorMapFill fill) {
  static Entry& self = *find("cuTensorMapEncodeTiled");
  if (const Result result = enter(self)) return result;
  if (reinterpret_cast<size_t>(to) % 64 != 0) return invalid_value;
  fake_cuda::TensorMapRecord map;
  map.element_type = static_cast<unsigned>(type);
  map.rank = rank;
  map.address = reinterpret_cast<size_t>(address);
  for (unsigned i = 0; i < std::min(rank, 5u); ++i) {
    map.sizes[i] = sizes[i];
    map.box[i] = box[i];
    if (i > 0) map.strides[i - 1] = strides[i - 1];
  }
  map.interleave = static_cast<unsigned>(interleave);
  map.swizzle = static_cast<unsigned>(swizzle);
  map.l2_promotion = static_cast<unsigned>(promotion);
  map.fill = static_cast<unsigned>(fill);
  if (const Result result = judge(map, element_strides)) return result;
  std::memcpy(to, &map, sizeof map);
  return ok;
}

// ---- The function table, with the versions of cudaTypedefs.h.

std::vector<std::unique_ptr<Entry>> make_table() {
  std::vector<std::unique_ptr<Entry>> rows;
  const auto add = [&](const char* name, int version, auto member, auto function) {
    rows.push_back(std::make_unique<Entry>(name, version, member, function));
  };
  add("cuInit", 2000, &Driver::cuInit, &cuInit);
  add("cuGetErrorName", 6000, &Driver::cuGetErrorName, &cuGetErrorName);
  add("cuGetErrorString", 6000, &Driver::cuGetErrorString, &cuGetErrorString);
  add("cuDeviceGetCount", 2000, &Driver::cuDeviceGetCount, &cuDeviceGetCount);
  add("cuDeviceGet", 2000, &Driver::cuDeviceGet, &cuDeviceGet);
  add("cuDeviceGetName", 2000, &Driver::cuDeviceGetName, &cuDeviceGetName);
  add("cuDeviceGetAttribute", 2000, &Driver::cuDeviceGetAttribute, &cuDeviceGetAttribute);
  add("cuDevicePrimaryCtxRetain", 7000, &Driver::cuDevicePrimaryCtxRetain, &cuDevicePrimaryCtxRetain);
  add("cuDevicePrimaryCtxGetState", 7000, &Driver::cuDevicePrimaryCtxGetState, &cuDevicePrimaryCtxGetState);
  add("cuCtxGetCurrent", 4000, &Driver::cuCtxGetCurrent, &cuCtxGetCurrent);
  add("cuCtxGetDevice", 2000, &Driver::cuCtxGetDevice, &cuCtxGetDevice);
  add("cuCtxPushCurrent", 4000, &Driver::cuCtxPushCurrent, &cuCtxPushCurrent);
  add("cuCtxPopCurrent", 4000, &Driver::cuCtxPopCurrent, &cuCtxPopCurrent);
  add("cuStreamCreate", 2000, &Driver::cuStreamCreate, &cuStreamCreate);
  add("cuStreamDestroy", 4000, &Driver::cuStreamDestroy, &cuStreamDestroy);
  add("cuStreamSynchronize", 2000, &Driver::cuStreamSynchronize, &cuStreamSynchronize);
  add("cuStreamGetCtx", 9020, &Driver::cuStreamGetCtx, &cuStreamGetCtx);
  add("cuStreamGetId", 12000, &Driver::cuStreamGetId, &cuStreamGetId);
  add("cuStreamIsCapturing", 10000, &Driver::cuStreamIsCapturing, &cuStreamIsCapturing);
  add("cuStreamBeginCapture", 10010, &Driver::cuStreamBeginCapture, &cuStreamBeginCapture);
  add("cuStreamEndCapture", 10000, &Driver::cuStreamEndCapture, &cuStreamEndCapture);
  add("cuThreadExchangeStreamCaptureMode", 10010, &Driver::cuThreadExchangeStreamCaptureMode,
      &cuThreadExchangeStreamCaptureMode);
  add("cuGraphInstantiateWithFlags", 11040, &Driver::cuGraphInstantiateWithFlags, &cuGraphInstantiateWithFlags);
  add("cuGraphLaunch", 10000, &Driver::cuGraphLaunch, &cuGraphLaunch);
  add("cuGraphExecDestroy", 10000, &Driver::cuGraphExecDestroy, &cuGraphExecDestroy);
  add("cuGraphDestroy", 10000, &Driver::cuGraphDestroy, &cuGraphDestroy);
  add("cuEventCreate", 2000, &Driver::cuEventCreate, &cuEventCreate);
  add("cuEventDestroy", 4000, &Driver::cuEventDestroy, &cuEventDestroy);
  add("cuEventRecord", 2000, &Driver::cuEventRecord, &cuEventRecord);
  add("cuEventSynchronize", 2000, &Driver::cuEventSynchronize, &cuEventSynchronize);
  add("cuStreamWaitEvent", 3020, &Driver::cuStreamWaitEvent, &cuStreamWaitEvent);
  add("cuEventElapsedTime", 2000, &Driver::cuEventElapsedTime, &cuEventElapsedTime);
  add("cuMemAlloc", 3020, &Driver::cuMemAlloc, &cuMemAlloc);
  add("cuMemFree", 3020, &Driver::cuMemFree, &cuMemFree);
  add("cuMemcpyHtoD", 3020, &Driver::cuMemcpyHtoD, &cuMemcpyHtoD);
  add("cuMemcpyDtoH", 3020, &Driver::cuMemcpyDtoH, &cuMemcpyDtoH);
  add("cuMemsetD8", 3020, &Driver::cuMemsetD8, &cuMemsetD8);
  add("cuMemsetD8Async", 3020, &Driver::cuMemsetD8Async, &cuMemsetD8Async);
  add("cuLibraryLoadData", 12000, &Driver::cuLibraryLoadData, &cuLibraryLoadData);
  add("cuLibraryUnload", 12000, &Driver::cuLibraryUnload, &cuLibraryUnload);
  add("cuLibraryGetKernel", 12000, &Driver::cuLibraryGetKernel, &cuLibraryGetKernel);
  add("cuLibraryGetGlobal", 12000, &Driver::cuLibraryGetGlobal, &cuLibraryGetGlobal);
  add("cuKernelGetFunction", 12000, &Driver::cuKernelGetFunction, &cuKernelGetFunction);
  add("cuKernelGetAttribute", 12000, &Driver::cuKernelGetAttribute, &cuKernelGetAttribute);
  add("cuKernelSetAttribute", 12000, &Driver::cuKernelSetAttribute, &cuKernelSetAttribute);
  add("cuOccupancyMaxActiveBlocksPerMultiprocessor", 6050, &Driver::cuOccupancyMaxActiveBlocksPerMultiprocessor,
      &cuOccupancyMaxActiveBlocksPerMultiprocessor);
  add("cuLaunchKernelEx", 11060, &Driver::cuLaunchKernelEx, &cuLaunchKernelEx);
  add("cuCtxSetLimit", 3010, &Driver::cuCtxSetLimit, &cuCtxSetLimit);
  add("cuCtxResetPersistingL2Cache", 11000, &Driver::cuCtxResetPersistingL2Cache, &cuCtxResetPersistingL2Cache);
  add("cuTensorMapEncodeTiled", 12000, &Driver::cuTensorMapEncodeTiled, &cuTensorMapEncodeTiled);
  return rows;
}

void apply_failures(const std::vector<std::unique_ptr<Entry>>& rows, const char* list) {
  std::istringstream words(list);
  for (std::string word; std::getline(words, word, ',');)
    for (const auto& row : rows)
      if (const size_t equals = word.find('='); word.substr(0, equals) == row->name)
        row->failure = std::atoi(word.c_str() + equals + 1);
}

std::vector<std::unique_ptr<Entry>>& table() {
  static auto& rows = *[] {
    auto* made = new std::vector<std::unique_ptr<Entry>>(make_table());
    if (const char* failures = std::getenv("FAKE_CUDA_FAIL")) apply_failures(*made, failures);
    return made;
  }();
  return rows;
}

bool lacks(const std::string& name) {
  const char* list = std::getenv("FAKE_CUDA_LACKS");
  std::istringstream words(list == nullptr ? "" : list);
  for (std::string word; std::getline(words, word, ',');)
    if (word == name) return true;
  return false;
}

int attribute_by_device(const std::map<int, int>& values, int device) {
  const auto found = values.find(device);
  return found == values.end() ? -1 : found->second;
}

const fake_cuda::Control control = {
    .calls =
        [](const char* function) {
          long calls = 0;
          for (const auto& entry : table())
            if (function == nullptr || entry->name == function) calls += entry->calls;
          return calls;
        },
    .reset_calls =
        [] {
          for (const auto& entry : table()) entry->calls = 0;
        },
    .fail =
        [](const char* function, int result) {
          if (find(function) == nullptr) std::abort();  // a test that names an unknown function would test nothing
          find(function)->failure = result;
        },
    .launches = [] { return state().launches.load(); },
    .last_launch = [] { return state().last_launch; },
    .make_context = [](int device) -> void* { return make_context(device); },
    .destroy_context = [](void* context) { static_cast<Context*>(context)->alive = false; },
    .primary = [](int device) -> void* { return retain(device); },
    .primary_retains = [](int device) { return gpu(device).retains; },
    .set_current =
        [](void* context) {
          if (!context_stack.empty()) context_stack.pop_back();
          if (context != nullptr) context_stack.push_back(static_cast<Context*>(context));
        },
    .current = []() -> void* { return current(); },
    .depth = [] { return static_cast<int>(context_stack.size()); },
    .make_blocking_stream = [](void* context) -> void* { return make_stream(static_cast<Context*>(context), true); },
    .make_stream = [](void* context) -> void* { return make_stream(static_cast<Context*>(context), false); },
    .set_static_smem = [](int bytes) { state().static_smem = bytes; },
    .set_jit_log = [](const char* text) { state().jit_log = text; },
    .opt_in_smem = [](int device) { return attribute_by_device(state().last_attributed->smem, device); },
    .persisting_l2_bytes = [] { return state().persisting_l2_bytes; },
    .carveout = [](int device) { return attribute_by_device(state().last_attributed->carveout, device); },
    .live_bytes =
        [] {
          size_t bytes = 0;
          for (const auto& [address, size] : state().memory) bytes += size;
          return bytes;
        },
    .live_libraries =
        [] {
          return static_cast<int>(std::count_if(state().libraries.begin(), state().libraries.end(),
                                                [](const auto& library) { return library->alive; }));
        },
    .image_was = [](const void* bytes,
                    size_t count) { return state().image == std::string(static_cast<const char*>(bytes), count); },
};

}  // namespace

#pragma GCC visibility push(default)

extern "C" Result cuDriverGetVersion(int* version) {
  *version = number_from_environment("FAKE_CUDA_VERSION", 13000);
  return ok;
}

// Follows the documentation: a version above the driver's is an error. A function that is newer than the version is not
// found.
extern "C" Result cuGetProcAddress_v2(const char* name, void** address, int version, unsigned long long flags,
                                      int* status) {
  *address = nullptr;
  if (status != nullptr) *status = 1;
  if (version > number_from_environment("FAKE_CUDA_VERSION", 13000) || flags != legacy_functions) return invalid_value;
  Entry* entry = find(name);
  if (entry == nullptr || entry->version > version || lacks(entry->name)) return ok;
  *address = entry->address;
  if (status != nullptr) *status = 0;
  return ok;
}

extern "C" const fake_cuda::Control* fake_cuda_control() { return &control; }

#pragma GCC visibility pop
