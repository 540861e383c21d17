// The AVX-512 BF16 kernels: wide tiles of bf16 q, k and v without descales. Everything else runs in attention_avx512.
// Compiled with the flags of this instruction set. Called only if run-time dispatch (src/cpu/isa.cpp) selects it.
#include "cpu/tile_wide_bf16.h"

namespace rapt::cpu {

const AttentionKernel attention_avx512_bf16{scratch_bytes, attend_bf16, combine_any};

}  // namespace rapt::cpu
