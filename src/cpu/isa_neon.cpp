// The NEON kernels (aarch64).
// Compiled with the flags of that instruction set; entered only after run-time dispatch (src/device/device.cpp) allows
// it.
#include "cpu/attention_tile.h"

namespace rapt::cpu {

const AttentionKernel attention_neon{scratch_bytes, attend_any, combine_any};

}  // namespace rapt::cpu
