// The NEON kernels (aarch64).
// Compiled with the flags of this instruction set. Called only if run-time dispatch (src/cpu/isa.cpp) selects it.
#include "cpu/attention_tile.h"

namespace rapt::cpu {

const AttentionKernel attention_neon{scratch_bytes, attend_any, combine_any};

}  // namespace rapt::cpu
