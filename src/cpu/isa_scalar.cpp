// The portable kernels: four-lane vectors of the compiler, any architecture, no Highway.
// Compiled with the flags of that instruction set; entered only after run-time dispatch (src/device/device.cpp) allows
// it.
#define RAPT_SCALAR_ISA
#include "cpu/attention_tile.h"

namespace rapt::cpu {

const AttentionKernel attention_scalar{scratch_bytes, attend_any, combine_any};

}  // namespace rapt::cpu
