// The AVX-512 (F, BW, DQ, VL, CD) kernels.
// Compiled with the flags of this instruction set. Called only if run-time dispatch (src/cpu/isa.cpp) selects it.
#include "cpu/attention_tile.h"

namespace rapt::cpu {

const AttentionKernel attention_avx512{scratch_bytes, attend_any, combine_any};

}  // namespace rapt::cpu
