// Device facts: CPUID through the compiler's builtins, and presets for planning on other machines. A GPU's own facts
// come from its driver (src/cuda/context.cpp).
#include "device.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "cpu/attention_call.h"
#include "cpu/threads.h"
#include "error.h"

namespace rapt {
namespace {

struct IsaRow {
  CpuIsa isa;
  const char* name;
  const cpu::AttentionKernel* kernel;  // null: not in this build
};

const IsaRow isa_table[] = {
    {CpuIsa::scalar, "scalar", &cpu::attention_scalar},
#if defined(RAPT_ISA_NEON)
    {CpuIsa::neon, "neon", &cpu::attention_neon},
#else
    {CpuIsa::neon, "neon", nullptr},
#endif
#if defined(RAPT_ISA_AVX2)
    {CpuIsa::avx2, "avx2", &cpu::attention_avx2},
#else
    {CpuIsa::avx2, "avx2", nullptr},
#endif
#if defined(RAPT_ISA_AVX512)
    {CpuIsa::avx512, "avx512", &cpu::attention_avx512},
#else
    {CpuIsa::avx512, "avx512", nullptr},
#endif
#if defined(RAPT_ISA_AVX512_BF16)
    {CpuIsa::avx512_bf16, "avx512-bf16", &cpu::attention_avx512_bf16},
#else
    {CpuIsa::avx512_bf16, "avx512-bf16", nullptr},
#endif
};

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

// vdpbf16ps does twice the work of an FMA, but on Intel's Sapphire and Emerald Rapids it runs at a quarter of its rate
// (measured: 88 against 177 GFLOP/s a core), so only AMD's cores, with one each cycle, choose it by themselves.
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

// What a compute capability fixes: the CUDA C++ Programming Guide's table "Technical Specifications per Compute
// Capability". A block may ask for 1 KiB less than a multiprocessor's shared memory.
struct Capability {
  int sm;
  int smem_per_sm_kib;
  int threads_per_sm;
};
constexpr Capability capabilities[] = {{80, 164, 2048},  {86, 100, 1536},  {87, 164, 1536},
                                       {89, 100, 1536},  {90, 228, 2048},  {100, 228, 2048},
                                       {103, 228, 2048}, {120, 100, 1536}, {121, 100, 1536}};
constexpr int registers_per_sm = 65536;  // of every one of them

// Cards by capability, smallest first. Those without a name stand for an architecture alone: Jetson AGX Orin, B300 (as
// the B200), GB10. Multiprocessors and L2 as in NVIDIA's whitepapers (A100, GA102, Ada, H100, RTX
// Blackwell), data sheets (A10, L4, L40S, H200) and tuning guide (B200); the H100 is the SXM5 one.
struct Card {
  const char* name;
  int sm;
  int sm_count;
  int l2_mib;
};
constexpr Card cards[] = {{"a100", 80, 108, 40},   {"a10", 86, 72, 6},    {"rtx3090", 86, 82, 6},
                          {"", 87, 16, 4},         {"l4", 89, 58, 48},    {"rtx4090", 89, 128, 72},
                          {"l40s", 89, 142, 96},   {"h100", 90, 132, 50}, {"h200", 90, 132, 50},
                          {"b200", 100, 148, 126}, {"", 103, 148, 126},   {"rtx5090", 120, 170, 96},
                          {"", 121, 48, 24}};

Device gpu_preset(std::string_view name, const Card& card, std::string_view arch) {
  Device device;
  device.kind = DeviceKind::cuda;
  device.name = name;
  device.sm = card.sm;
  device.sm_count = card.sm_count;
  device.l2_bytes = int64_t{card.l2_mib} << 20;
  for (const Capability& capability : capabilities)
    if (capability.sm == card.sm) {
      device.smem_per_sm = capability.smem_per_sm_kib << 10;
      device.threads_per_sm = capability.threads_per_sm;
    }
  device.smem_per_block = device.smem_per_sm - 1024;
  device.registers_per_sm = registers_per_sm;
  device.arch = arch;
  return device;
}

// The preset `name`, if it is a card or an architecture; adds the names that it knows to `known`.
std::optional<Device> find_gpu_preset(std::string_view name, std::string& known) {
  for (const Card& card : cards) {
    if (*card.name == '\0') continue;
    known += concat(", ", card.name);
    if (name == card.name) return gpu_preset(name, card, arch_of(card.sm));
  }
  int previous = 0;
  for (const Card& card : cards) {
    if (card.sm == std::exchange(previous, card.sm)) continue;
    for (const std::string& arch : {arch_of(card.sm), concat("sm_", card.sm), concat("compute_", card.sm)}) {
      if (!known.ends_with(", " + arch)) known += ", " + arch;
      if (name == arch) return gpu_preset(name, card, arch);
    }
  }
  return std::nullopt;
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

const char* name_of(CpuIsa isa) {
  for (const IsaRow& row : isa_table)
    if (row.isa == isa) return row.name;
  return "unknown";
}

std::vector<CpuIsa> available_cpu_isas() {
  std::vector<CpuIsa> isas;
  for (const IsaRow& row : isa_table)
    if (row.kernel != nullptr && machine_runs(row.isa)) isas.push_back(row.isa);
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

// The "a" of sm_90a admits the instructions that only that chip has (wgmma, setmaxnreg). No kernel of
// rapt uses those of another chip, and without the "a" a cubin runs on later minor versions too.
std::string arch_of(int sm) { return concat("sm_", sm, sm == 90 ? "a" : ""); }

int arch_number(std::string_view arch) {
  int number = 0;
  for (size_t at = std::min(arch.find('_'), arch.size() - 1) + 1;
       at < arch.size() && arch[at] >= '0' && arch[at] <= '9'; ++at)
    number = 10 * number + (arch[at] - '0');
  return number;
}

Device device_preset(std::string_view name) {
  if (name == "cpu") return cpu_device();
  Device device;
  device.name = "cpu";
  device.threads = 16;
  std::string known = "cpu";
  for (const IsaRow& row : isa_table) {
    const std::string preset = concat("cpu-", row.name);
    known += ", " + preset;
    if (name == preset) {
      device.isa = row.isa;
      return device;
    }
  }
  if (const std::optional<Device> gpu = find_gpu_preset(name, known)) return *gpu;
  invalid("device = ", name, ": known presets are ", known);
}

}  // namespace rapt
