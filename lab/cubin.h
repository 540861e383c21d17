// What a kernel's machine code is made of, read from the cubin itself: a kernel that claims tensor cores or
// asynchronous copies has the instructions for them. Used by the ladder and its tests; needs neither a GPU nor a
// disassembler.
#pragma once

#include <string_view>

namespace rapt::lab {

// Instructions in the code, not executions; kinds without those that can never run. _16: the 16-byte ones among them.
struct InstructionCounts {
  int total = 0;
  int ffma = 0;             // fused multiply-add of floats
  int hmma = 0;             // mma.sync of 16-bit floats
  int qmma = 0;             // mma.sync of FP8 codes (sm_89, sm_120)
  int ldsm = 0;             // ldmatrix
  int ldgsts = 0;           // cp.async
  int mufu = 0;             // ex2, rcp and other special functions
  int ldg = 0, ldg_16 = 0;  // loads from global memory
  int lds = 0, lds_16 = 0;  // loads from shared memory
  int sts = 0, sts_16 = 0;  // stores to shared memory
  int local = 0;            // loads and stores of local memory: spills, or indexed arrays
};

// Of the kernel `entry` in a cubin of sm_70 or later (16-byte instructions). Throws Error{invalid_argument} where the
// bytes are no such cubin or have no such kernel.
InstructionCounts count_instructions(std::string_view cubin, std::string_view entry = "rapt_kernel");

}  // namespace rapt::lab
