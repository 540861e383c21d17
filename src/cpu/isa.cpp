// The instruction sets that this build contains and this machine supports (compiler builtins read CPUID).
#include "cpu/isa.h"

#include <unistd.h>

#include <atomic>

#include "base/error.h"
#include "cpu/attention_call.h"
#include "cpu/threads.h"

namespace rapt {
namespace {

struct IsaRow {
  CpuIsa isa;
  const cpu::AttentionKernel* kernel;
};

// The instruction sets in this build.
#define ISA(name) {CpuIsa::name, &cpu::attention_##name},
const IsaRow isa_table[] = {RAPT_CPU_ISAS};
#undef ISA

bool machine_runs(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::scalar: return true;
#if defined(__x86_64__)
    case CpuIsa::avx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") &&
             __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("aes");
    case CpuIsa::avx512:
      return machine_runs(CpuIsa::avx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
             __builtin_cpu_supports("avx512cd");
    case CpuIsa::avx512_bf16: return machine_runs(CpuIsa::avx512) && __builtin_cpu_supports("avx512bf16");
#elif defined(__aarch64__)
    case CpuIsa::neon: return true;
#endif
    default: return false;
  }
}

// One vdpbf16ps does the work of two FMAs. Intel's Sapphire and Emerald Rapids execute it at a quarter of the FMA rate
// (measured: 88 and 177 GFLOP/s per core). Therefore avx512_bf16 is the default only on AMD, whose CPUs execute one per
// cycle.
bool prefers_bf16_dot() {
#if defined(__x86_64__)
  return __builtin_cpu_is("amd");
#else
  return false;
#endif
}

CpuIsa best_isa() {
  CpuIsa best = CpuIsa::scalar;
  for (const CpuIsa isa : available_cpu_isas())
    if (isa != CpuIsa::avx512_bf16 || prefers_bf16_dot()) best = isa;
  return best;
}

constexpr int no_limit = -1;
std::atomic<int> isa_limit{no_limit};

int64_t private_cache_bytes() {
#if defined(_SC_LEVEL2_CACHE_SIZE)
  if (const long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE); bytes > 0) return bytes;
#endif
  return 1 << 20;
}

}  // namespace

const cpu::AttentionKernel* cpu_kernel(CpuIsa isa) {
  for (const IsaRow& row : isa_table)
    if (row.isa == isa) return row.kernel;
  return nullptr;
}

std::vector<CpuIsa> available_cpu_isas() {
  std::vector<CpuIsa> isas;
  for (const IsaRow& row : isa_table)
    if (machine_runs(row.isa)) isas.push_back(row.isa);
  return isas;
}

void set_cpu_isa_limit(std::optional<CpuIsa> isa) {
  if (isa && (cpu_kernel(*isa) == nullptr || !machine_runs(*isa)))
    throw Error(ErrorCode::environment,
                concat("instruction set ", name_of(*isa), ": not in this build or not on this machine"));
  isa_limit.store(isa ? static_cast<int>(*isa) : no_limit);
}

Device cpu_device() {
  static const CpuIsa best = best_isa();
  static const int threads = cpu::available_threads();
  static const int64_t cache = private_cache_bytes();
  const int limit = isa_limit.load(std::memory_order_relaxed);
  Device device;
  device.name = "cpu";
  device.isa = limit == no_limit ? best : static_cast<CpuIsa>(limit);
  device.threads = threads;
  device.l2_bytes = cache;
  return device;
}

}  // namespace rapt
