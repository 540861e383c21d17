// The instruction sets of this build and this machine, and their kernels. Used by kernels/cpu; and by tests and the
// lab, which run every instruction set.
#pragma once

#include <optional>
#include <vector>

#include "device/device.h"

namespace rapt {

// For tests and the lab. Later plans of this process use this instruction set, or the best one if `isa` is nullopt.
// Throws Error if this build or machine lacks it.
void set_cpu_isa_limit(std::optional<CpuIsa> isa);

// The instruction sets that this build contains and this machine supports, scalar first.
std::vector<CpuIsa> available_cpu_isas();

namespace cpu {
struct AttentionKernel;
}
// The kernels of an instruction set, or null if this build has none.
const cpu::AttentionKernel* cpu_kernel(CpuIsa isa);

}  // namespace rapt
