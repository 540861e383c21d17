// Device: the properties of one machine that planning may use, read from the machine or from a preset. Used by plan.cpp
// and the kernel families. It is plain data, so tests can plan for any machine.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace rapt {

enum class DeviceKind : uint8_t { cpu, cuda };

// The order matters: an instruction set can run all code of earlier ones on the same architecture.
enum class CpuIsa : uint8_t { scalar, neon, avx2, avx512, avx512_bf16 };
inline constexpr std::pair<CpuIsa, const char*> cpu_isas[] = {{CpuIsa::scalar, "scalar"},
                                                              {CpuIsa::neon, "neon"},
                                                              {CpuIsa::avx2, "avx2"},
                                                              {CpuIsa::avx512, "avx512"},
                                                              {CpuIsa::avx512_bf16, "avx512-bf16"}};

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  std::string name;             // "cpu" or the GPU's name
  CpuIsa isa = CpuIsa::scalar;  // cpu: the best instruction set of both this build and the machine
  // cpu: the number of threads that affinity and the cgroup quota allow. It changes only the time of a call, never the
  // bits of its result
  int threads = 1;
  int64_t l2_bytes = 1 << 20;  // cpu: the private cache of one core; cuda: the L2 cache of the GPU
  // For cuda only:
  int index = 0;           // the GPU's number in this process
  int sm = 0;              // compute capability: 80, 86, 89, 90, 120
  int sm_count = 0;        // streaming multiprocessors
  int smem_per_block = 0;  // bytes, the maximum of a thread block
  int smem_per_sm = 0;     // bytes per multiprocessor
  int registers_per_sm = 0;
  int threads_per_sm = 0;
  std::string arch;  // the target of kernel compilation: "sm_89", "sm_90a"; "compute_89" = PTX for the driver
};

// Limits of the resident blocks of a multiprocessor, besides registers, threads and shared memory.
struct BlockLimits {
  int blocks = 0, barriers = 0;  // barriers: 0 = no limit
};
// Throws Error if compute capability `sm` is unknown.
BlockLimits block_limits(int sm);

// The architecture that kernels of compute capability `sm` are compiled for: 90 -> "sm_90a", 89 -> "sm_89".
std::string arch_of(int sm);
// "sm_90a", "compute_90" -> 90; 0 for anything else.
int arch_number(std::string_view arch);

// This machine's CPU. Its isa is the best one, or the limit of set_cpu_isa_limit (cpu/isa.h). Defined in cpu/isa.cpp.
Device cpu_device();

// "cpu", "cpu-scalar", "cpu-avx2", "cpu-avx512", "cpu-avx512-bf16", "cpu-neon", a GPU ("l4", "a100", "h100", ...) or an
// architecture ("sm_89": its smallest known GPU). Throws Error with the names of all presets.
Device device_preset(std::string_view name);

const char* name_of(CpuIsa isa);

}  // namespace rapt
