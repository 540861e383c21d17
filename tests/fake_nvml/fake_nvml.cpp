// A stand-in for libnvidia-ml.so.1. It has one GPU, at the PCI address of the stand-in driver's GPU (tests/fake_cuda).
// Environment variables (with defaults): FAKE_NVML_SM (1980) and FAKE_NVML_MEMORY (2619) are the clocks in MHz.
// FAKE_NVML_LIMITS (0) has the bits of nvmlClocksEventReasons. FAKE_NVML_FAIL names a function that fails, and its
// error ("nvmlInit_v2=9").
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

constexpr int success = 0, invalid_argument = 2, not_found = 6;

unsigned long long number(const char* name, unsigned long long otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 0);
}

int result_of(const char* function) {
  const char* fail = std::getenv("FAKE_NVML_FAIL");
  const std::string wanted = std::string(function) + "=";
  if (fail == nullptr || std::strncmp(fail, wanted.c_str(), wanted.size()) != 0) return success;
  return std::atoi(fail + wanted.size());
}

int gpu;

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int nvmlInit_v2() { return result_of("nvmlInit_v2"); }
int nvmlShutdown() { return success; }

int nvmlDeviceGetHandleByPciBusId_v2(const char* address, void** device) {
  if (std::strcmp(address, "00000002:3B:01.0") != 0) return not_found;
  *device = &gpu;
  return result_of("nvmlDeviceGetHandleByPciBusId_v2");
}

int nvmlDeviceGetClockInfo(void* device, int kind, unsigned* mhz) {
  if (device != &gpu || (kind != 1 && kind != 2)) return invalid_argument;
  *mhz = static_cast<unsigned>(kind == 1 ? number("FAKE_NVML_SM", 1980) : number("FAKE_NVML_MEMORY", 2619));
  return result_of("nvmlDeviceGetClockInfo");
}

int nvmlDeviceGetCurrentClocksEventReasons(void* device, unsigned long long* bits) {
  if (device != &gpu) return invalid_argument;
  *bits = number("FAKE_NVML_LIMITS", 0);
  return result_of("nvmlDeviceGetCurrentClocksEventReasons");
}

}  // extern "C"
#pragma GCC visibility pop
