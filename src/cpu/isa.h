// The instruction sets of this build and this machine, and the kernels of each.
// Used by kernels/cpu, by tests and by the lab, which run every set.
#pragma once

#include <optional>
#include <vector>

#include "device/device.h"

namespace rapt {

// Tests and the lab hold every instruction set to the same checks: later plans use this one; nothing = the best again.
// Process-wide. Throws Error when this build or machine lacks it.
void set_cpu_isa_limit(std::optional<CpuIsa> isa);

// Instruction sets that this build has and this machine runs, scalar first.
std::vector<CpuIsa> available_cpu_isas();

namespace cpu {
struct AttentionKernel;
}
// The kernels of an instruction set, or null where this build has none.
const cpu::AttentionKernel* cpu_kernel(CpuIsa isa);

}  // namespace rapt
