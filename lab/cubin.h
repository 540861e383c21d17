// Reads cubins: the sections of the file, and a count of a kernel's instructions. The count proves that a kernel that
// claims tensor cores or asynchronous copies uses those instructions. Used by the ladder, by profile and by tests.
// Needs no GPU and no disassembler.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace rapt::lab {

inline constexpr size_t instruction_bytes = 16;  // since sm_70

// The bytes of a section of the cubin; nothing if there is no such section. Throws Error{invalid_argument} if `cubin`
// is not a cubin.
std::optional<std::string_view> cubin_section(std::string_view cubin, std::string_view name);

// How many instructions of each kind the code contains (not how often they are executed). Instructions that can never
// execute are not counted. The members ..._16 count only 16-byte accesses.
struct InstructionCounts {
  int total = 0;
  int ffma = 0;             // fused multiply-add of floats
  int hmma = 0;             // mma.sync of 16-bit floats
  int qmma = 0;             // mma.sync of FP8 codes (sm_89, sm_120)
  int hgmma = 0;            // wgmma of 16-bit floats (sm_90)
  int qgmma = 0;            // wgmma of FP8 codes (sm_90)
  int ldsm = 0;             // ldmatrix
  int ldgsts = 0;           // cp.async
  int arrives = 0;          // cp.async.mbarrier.arrive
  int mufu = 0;             // ex2, rcp and other special functions
  int ldg = 0, ldg_16 = 0;  // loads from global memory
  int lds = 0, lds_16 = 0;  // loads from shared memory
  int sts = 0, sts_16 = 0;  // stores to shared memory
  int local = 0;            // loads and stores of local memory: spills, or indexed arrays
};

// Counts the instructions of kernel `entry` in a cubin of sm_70 or later (16-byte instructions). Throws
// Error{invalid_argument} if the bytes are not such a cubin or have no such kernel.
InstructionCounts count_instructions(std::string_view cubin, std::string_view entry = "rapt_kernel");

}  // namespace rapt::lab
