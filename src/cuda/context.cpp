// The GPUs of this process: their properties, their primary contexts, and the context that a call runs in. Called by
// sdpa, the context of rapt, check and lab. ContextScope runs in every call, so it makes as few driver calls as
// possible.
#include <array>
#include <atomic>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "cuda/driver.h"

namespace rapt::cuda {
namespace {

struct Gpu {
  Device facts;
  DeviceHandle handle = 0;
  std::atomic<ContextHandle> primary{nullptr};  // once retained, it lives as long as the process
};

struct Gpus {
  int count = 0;
  std::array<Gpu, max_devices> at;
};

int attribute(const Driver& driver, DeviceHandle handle, DeviceAttribute which) {
  int value = 0;
  check(driver, driver.cuDeviceGetAttribute(&value, which, handle),
        "reading a GPU's properties (cuDeviceGetAttribute)");
  return value;
}

Device read_facts(const Driver& driver, DeviceHandle handle, int index) {
  char name[256] = "";
  check(driver, driver.cuDeviceGetName(name, sizeof name - 1, handle), "reading a GPU's name (cuDeviceGetName)");
  const auto fact = [&](DeviceAttribute which) { return attribute(driver, handle, which); };
  Device device;
  device.kind = DeviceKind::cuda;
  device.name = name;
  device.index = index;
  device.sm = fact(DeviceAttribute::capability_major) * 10 + fact(DeviceAttribute::capability_minor);
  device.arch = arch_of(device.sm);
  device.sm_count = fact(DeviceAttribute::sm_count);
  device.smem_per_block = fact(DeviceAttribute::smem_per_block);
  device.smem_per_sm = fact(DeviceAttribute::smem_per_sm);
  device.registers_per_sm = fact(DeviceAttribute::registers_per_sm);
  device.threads_per_sm = fact(DeviceAttribute::threads_per_sm);
  device.l2_bytes = fact(DeviceAttribute::l2_bytes);
  return device;
}

int driver_count(const Driver& driver) {
  int count = 0;
  check(driver, driver.cuDeviceGetCount(&count), "counting GPUs (cuDeviceGetCount)");
  return count;
}

std::unique_ptr<Gpus> read_gpus(const Driver& driver) {
  auto gpus = std::make_unique<Gpus>();
  gpus->count = driver_count(driver);
  for (int index = 0; index < std::min(gpus->count, max_devices); ++index) {
    Gpu& gpu = gpus->at[static_cast<size_t>(index)];
    check(driver, driver.cuDeviceGet(&gpu.handle, index), "finding a GPU (cuDeviceGet)");
    gpu.facts = read_facts(driver, gpu.handle, index);
  }
  return gpus;
}

Gpus& all_gpus(const Driver& driver) {
  static Gpus& gpus = *read_gpus(driver).release();  // kept until the process ends
  return gpus;
}

Gpu& gpu_at(const Driver& driver, int index) {
  Gpus& gpus = all_gpus(driver);
  if (index >= 0 && index < std::min(gpus.count, max_devices)) return gpus.at[static_cast<size_t>(index)];
  if (index >= max_devices && index < gpus.count)
    unsupported("device = cuda:", index, ": rapt supports at most ", max_devices, " GPUs of a process");
  throw Error(ErrorCode::environment,
              concat("device = cuda:", index, ": this process sees ", gpus.count, gpus.count == 1 ? " GPU" : " GPUs"));
}

std::string name_of_handle(const Driver& driver, DeviceHandle handle) {
  Gpus& gpus = all_gpus(driver);
  for (int index = 0; index < std::min(gpus.count, max_devices); ++index)
    if (gpus.at[static_cast<size_t>(index)].handle == handle) return concat("cuda:", index);
  return "another device";
}

ContextHandle retain_primary(const Driver& driver, Gpu& gpu) {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  if (ContextHandle known = gpu.primary.load(std::memory_order_acquire)) return known;
  ContextHandle context = nullptr;
  check(driver, driver.cuDevicePrimaryCtxRetain(&context, gpu.handle),
        "retaining a GPU's primary context (cuDevicePrimaryCtxRetain)");
  gpu.primary.store(context, std::memory_order_release);
  return context;
}

ContextHandle primary(const Driver& driver, Gpu& gpu) {
  ContextHandle known = gpu.primary.load(std::memory_order_acquire);
  return known != nullptr ? known : retain_primary(driver, gpu);
}

// A primary context that another library created is retained at its first use, so its handle stays valid. is_primary()
// itself never creates a context.
bool is_primary(const Driver& driver, Gpu& gpu, ContextHandle context) {
  if (ContextHandle known = gpu.primary.load(std::memory_order_acquire)) return known == context;
  unsigned flags = 0;
  int active = 0;
  check(driver, driver.cuDevicePrimaryCtxGetState(gpu.handle, &flags, &active),
        "asking for a primary context's state (cuDevicePrimaryCtxGetState)");
  return active != 0 && retain_primary(driver, gpu) == context;
}

DeviceHandle device_of_current(const Driver& driver) {
  DeviceHandle handle = 0;
  check(driver, driver.cuCtxGetDevice(&handle), "asking for the current context's GPU (cuCtxGetDevice)");
  return handle;
}

bool is_default_stream(StreamHandle stream) {
  return stream == nullptr || stream == legacy_stream || stream == per_thread_stream;
}

thread_local int primary_index_in_scope = -1;

}  // namespace

int device_count() {
  const Driver* driver = find_driver();
  return driver == nullptr ? 0 : driver_count(*driver);
}

const Device& device(int index) { return gpu_at(driver(), index).facts; }

DeviceHandle device_handle(int index) { return gpu_at(driver(), index).handle; }

int primary_in_scope() noexcept { return primary_index_in_scope; }

ContextScope::ContextScope() noexcept : outer_(primary_index_in_scope) {}

// In a warm call in the device's primary context, the driver calls are one cuCtxGetCurrent and, except for a default
// stream, one cuStreamGetCtx. This constructor delegates to another one, so that the destructor also runs if the code
// after the push throws.
ContextScope::ContextScope(int index, StreamHandle stream) : ContextScope() {
  const Driver& driver = cuda::driver();
  Gpu& gpu = gpu_at(driver, index);
  ContextHandle current = nullptr, wanted = nullptr;
  check(driver, driver.cuCtxGetCurrent(&current), "asking for the current context (cuCtxGetCurrent)");
  if (!is_default_stream(stream)) {
    check(driver, driver.cuStreamGetCtx(stream, &wanted), "asking for the stream's context (cuStreamGetCtx)");
  } else {
    const bool known = current != nullptr && current == gpu.primary.load(std::memory_order_acquire);
    const bool fits = known || (current != nullptr && device_of_current(driver) == gpu.handle);
    wanted = fits ? current : primary(driver, gpu);
  }
  if (wanted != current) {
    check(driver, driver.cuCtxPushCurrent(wanted), "making a context current (cuCtxPushCurrent)");
    pushed_ = true;
  }
  if (!is_default_stream(stream) && wanted != gpu.primary.load(std::memory_order_acquire)) {
    const DeviceHandle owner = device_of_current(driver);
    if (owner != gpu.handle)
      invalid("stream = ", stream, ": it belongs to ", name_of_handle(driver, owner),
              ", the tensors are on cuda:", index);
  }
  primary_index_in_scope = is_primary(driver, gpu, wanted) ? index : -1;
}

ContextScope::~ContextScope() {
  primary_index_in_scope = outer_;
  if (!pushed_) return;
  ContextHandle popped = nullptr;
  if (const Driver* driver = opened_driver()) driver->cuCtxPopCurrent(&popped);
}

}  // namespace rapt::cuda
