// Loads NVML with dlopen. Declares the four functions that it needs, as nvml.h of CUDA 13.0 does. Called by bench.
#include "lab/gpu_clocks.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "base/error.h"
#include "cuda/driver.h"

namespace rapt::lab {
namespace {

enum ClockKind : int { sm_clock = 1, memory_clock = 2 };  // nvmlClockType_t

// The names of the bits nvmlClocksEventReason*, from bit 0 on. Bit 0 means that the GPU is idle.
constexpr const char* limit_bits[] = {"gpu_idle",
                                      "applications_clocks_setting",
                                      "sw_power_cap",
                                      "hw_slowdown",
                                      "sync_boost",
                                      "sw_thermal_slowdown",
                                      "hw_thermal_slowdown",
                                      "hw_power_brake_slowdown",
                                      "display_clock_setting"};

// The PCI address in NVML's form: "00000000:3B:00.0".
std::string pci_address(const Device& device) {
  const cuda::Driver& driver = cuda::driver();
  cuda::DeviceHandle handle = 0;
  if (driver.cuDeviceGet(&handle, device.index) != cuda::result::success) return "";
  const auto fact = [&](cuda::DeviceAttribute which) {
    int value = 0;
    return driver.cuDeviceGetAttribute(&value, which, handle) == cuda::result::success ? value : 0;
  };
  return fmt::format("{:08X}:{:02X}:{:02X}.0", fact(cuda::DeviceAttribute::pci_domain),
                     fact(cuda::DeviceAttribute::pci_bus), fact(cuda::DeviceAttribute::pci_device));
}

}  // namespace

std::vector<std::string> limit_names(uint64_t limits) {
  std::vector<std::string> names;
  for (size_t bit = 1; bit < 64; ++bit)
    if ((limits >> bit & 1) != 0) names.push_back(bit < std::size(limit_bits) ? limit_bits[bit] : concat("bit ", bit));
  return names;
}

GpuClockReader::GpuClockReader(const Device& device, const char* library) {
  try {
    open(device, library);
  } catch (const Error& error) {
    note_ = error.what();
  }
}

GpuClockReader::~GpuClockReader() {
  if (shutdown_ != nullptr) shutdown_();
  if (library_ != nullptr) dlclose(library_);
}

template <class Function>
bool GpuClockReader::find(Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(library_, name));
  return function != nullptr;
}

void GpuClockReader::open(const Device& device, const char* library) {
  const auto fail = [](const std::string& why) { throw Error(ErrorCode::environment, "clocks not read: " + why); };
  library_ = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr) fail(dlerror());
  Result (*init)() = nullptr;
  Result (*by_address)(const char*, DeviceHandle*) = nullptr;
  if (!find(init, "nvmlInit_v2") || !find(by_address, "nvmlDeviceGetHandleByPciBusId_v2"))
    fail(concat(library, ": lacks nvmlInit_v2 or nvmlDeviceGetHandleByPciBusId_v2"));
  if (const Result result = init(); result != 0) fail(concat("nvmlInit_v2 returned ", result));
  find(shutdown_, "nvmlShutdown");
  find(clock_, "nvmlDeviceGetClockInfo");
  // The function has two names. The newer one is tried first.
  if (!find(limits_, "nvmlDeviceGetCurrentClocksEventReasons"))
    find(limits_, "nvmlDeviceGetCurrentClocksThrottleReasons");
  const std::string address = pci_address(device);
  if (const Result result = by_address(address.c_str(), &device_); result != 0) {
    device_ = nullptr;
    fail(concat("NVML knows no GPU at ", address, " (error ", result, ")"));
  }
}

GpuClocks GpuClockReader::read() const {
  GpuClocks clocks;
  if (device_ == nullptr) return clocks;
  const auto mhz = [&](ClockKind kind) -> std::optional<int> {
    unsigned value = 0;
    if (clock_ == nullptr || clock_(device_, kind, &value) != 0) return std::nullopt;
    return static_cast<int>(value);
  };
  clocks.sm_mhz = mhz(sm_clock);
  clocks.memory_mhz = mhz(memory_clock);
  unsigned long long bits = 0;
  if (limits_ != nullptr && limits_(device_, &bits) == 0) clocks.limits = bits;
  return clocks;
}

}  // namespace rapt::lab
