// Presets: the properties of other machines. cpu/isa.cpp reads this machine's CPU; cuda/context.cpp reads a GPU's
// properties from its driver.
#include "device/device.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"

namespace rapt {
namespace {

// The properties that a compute capability fixes. Source: the CUDA C++ Programming Guide, "Technical Specifications per
// Compute Capability". A block can use 1 KiB less than a multiprocessor's shared memory. Barriers: cuda_occupancy.h of
// CUDA 13.0, cudaOccMaxBlocksPerSMBlockBarrierLimit.
struct Capability {
  int sm;
  int smem_per_sm_kib;
  int threads_per_sm;
  BlockLimits limits;
};
constexpr Capability capabilities[] = {
    {80, 164, 2048, {32, 0}},   {86, 100, 1536, {16, 0}},   {87, 164, 1536, {16, 0}},
    {89, 100, 1536, {24, 0}},   {90, 228, 2048, {32, 64}},  {100, 228, 2048, {32, 64}},
    {103, 228, 2048, {32, 64}}, {120, 100, 1536, {24, 24}}, {121, 100, 1536, {24, 24}}};
constexpr int registers_per_sm = 65536;  // the same for all capabilities

// GPUs by capability, smallest first. Entries without a name are found only by architecture: sm_87 (Jetson AGX Orin),
// sm_103 (B300, with the values of the B200) and sm_121 (GB10). Multiprocessors and L2 are from NVIDIA's whitepapers
// (A100, GA102, Ada, H100, RTX Blackwell), data sheets (A10, L4, L40S, H200) and tuning guide (B200). The H100 is the
// SXM5 version.
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

// Returns the preset `name` if it is a GPU or an architecture. Adds the known names to `known`.
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

}  // namespace

const char* name_of(CpuIsa isa) {
  for (const auto& [row, name] : cpu_isas)
    if (row == isa) return name;
  return "unknown";
}

BlockLimits block_limits(int sm) {
  for (const Capability& capability : capabilities)
    if (capability.sm == sm) return capability.limits;
  unsupported("compute capability ", sm / 10, ".", sm % 10, ": unknown to this build of rapt");
}

// The "a" of sm_90a permits instructions that only this chip has (wgmma, setmaxnreg). rapt's kernels for other chips
// use no such instructions. So the names of the other architectures have no "a", and their cubins also run on later
// minor versions.
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
  for (const auto& [isa, isa_name] : cpu_isas) {
    const std::string preset = concat("cpu-", isa_name);
    known += ", " + preset;
    if (name == preset) {
      device.isa = isa;
      return device;
    }
  }
  if (const std::optional<Device> gpu = find_gpu_preset(name, known)) return *gpu;
  invalid("device = ", name, ": known presets are ", known);
}

}  // namespace rapt
