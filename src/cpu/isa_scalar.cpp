// The portable kernels: four-lane vectors of the compiler, any architecture, no Highway.
// Compiled with the flags of this instruction set. Called only if run-time dispatch (src/cpu/isa.cpp) selects it.
#define RAPT_SCALAR_ISA
#include "cpu/attention_tile.h"

namespace rapt::cpu {

const AttentionKernel attention_scalar{scratch_bytes, attend_any, combine_any};

}  // namespace rapt::cpu
