// Device: the facts of one machine that planning may depend on, from the machine itself or by preset name.
// Read by plan.cpp and the kernel families; plain data, so that a plan for another machine is an ordinary test.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace rapt {

enum class DeviceKind : uint8_t { cpu, cuda };

// Ordered: a later one may run everything of an earlier one on the same architecture.
enum class CpuIsa : uint8_t { scalar, neon, avx2, avx512, avx512_bf16 };
inline constexpr std::pair<CpuIsa, const char*> cpu_isas[] = {{CpuIsa::scalar, "scalar"},
                                                              {CpuIsa::neon, "neon"},
                                                              {CpuIsa::avx2, "avx2"},
                                                              {CpuIsa::avx512, "avx512"},
                                                              {CpuIsa::avx512_bf16, "avx512-bf16"}};

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  std::string name;             // "cpu" or the card's name
  CpuIsa isa = CpuIsa::scalar;  // cpu: best instruction set that this build has and the machine runs
  int threads = 1;              // cpu: what affinity and the cgroup quota allow. Never changes bits, only time
  int64_t l2_bytes = 1 << 20;   // cpu: one core's private cache; cuda: the card's
  // cuda only:
  int index = 0;           // its number in this process
  int sm = 0;              // compute capability: 80, 86, 89, 90, 120
  int sm_count = 0;        // streaming multiprocessors
  int smem_per_block = 0;  // bytes that a thread block may ask for
  int smem_per_sm = 0;     // bytes of a multiprocessor
  int registers_per_sm = 0;
  int threads_per_sm = 0;
  std::string arch;  // what kernels are compiled for: "sm_89", "sm_90a"; "compute_89" = PTX for the driver
};

// What limits the blocks of a multiprocessor beside its registers, threads and shared memory.
struct BlockLimits {
  int blocks = 0, barriers = 0;  // barriers: 0 = they do not limit
};
// Throws Error where nothing is known of compute capability `sm`.
BlockLimits block_limits(int sm);

// The architecture that kernels of compute capability `sm` are compiled for: 90 -> "sm_90a", 89 -> "sm_89".
std::string arch_of(int sm);
// "sm_90a", "compute_90" -> 90; 0 for anything else.
int arch_number(std::string_view arch);

// This machine's CPU. Its isa is the best one, or what set_cpu_isa_limit (cpu/isa.h) says. Defined in cpu/isa.cpp.
Device cpu_device();

// "cpu", "cpu-scalar", "cpu-avx2", "cpu-avx512", "cpu-avx512-bf16", "cpu-neon", a card ("l4", "a100", "h100", ...) or
// an architecture ("sm_89": its smallest known card). Throws Error naming the known presets.
Device device_preset(std::string_view name);

const char* name_of(CpuIsa isa);

}  // namespace rapt
