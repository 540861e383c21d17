// The clocks of a GPU and the reasons why they are limited. They come from NVML (the driver's libnvidia-ml.so.1), which
// is loaded at run time. Result rows contain them, because two times are comparable only at equal clocks. Called by
// bench. A value that NVML does not report is absent.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "device/device.h"

namespace rapt::lab {

struct GpuClocks {
  std::optional<int> sm_mhz, memory_mhz;
  std::optional<uint64_t> limits;  // the reasons why the clock is not higher: bits of nvmlClocksEventReasons
};

// The names of the bits, in NVML's order: "sw_power_cap", "hw_thermal_slowdown" ... The bit for an idle GPU is left
// out, because it is not a limit. The name of an unknown bit is "bit N".
std::vector<std::string> limit_names(uint64_t limits);

class GpuClockReader {
 public:
  // device: a GPU of this machine, found in NVML by its PCI address. Never throws: without NVML, read() returns
  // nothing.
  explicit GpuClockReader(const Device& device, const char* library = "libnvidia-ml.so.1");
  ~GpuClockReader();
  GpuClockReader(const GpuClockReader&) = delete;
  GpuClockReader& operator=(const GpuClockReader&) = delete;
  GpuClocks read() const;
  const std::string& note() const { return note_; }  // why nothing can be read; "" if it can

 private:
  void open(const Device& device, const char* library);
  template <class Function>
  bool find(Function& function, const char* name);

  using Result = int;          // nvmlReturn_t; 0: success
  using DeviceHandle = void*;  // nvmlDevice_t
  Result (*shutdown_)() = nullptr;
  Result (*clock_)(DeviceHandle, int kind, unsigned* mhz) = nullptr;
  Result (*limits_)(DeviceHandle, unsigned long long* bits) = nullptr;
  void* library_ = nullptr;
  DeviceHandle device_ = nullptr;
  std::string note_;
};

}  // namespace rapt::lab
