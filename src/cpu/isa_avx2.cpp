// The AVX2 + FMA + F16C kernels.
// Compiled with the flags of this instruction set. Called only if run-time dispatch (src/cpu/isa.cpp) selects it.
#include "cpu/attention_tile.h"

namespace rapt::cpu {

const AttentionKernel attention_avx2{scratch_bytes, attend_any, combine_any};

}  // namespace rapt::cpu
