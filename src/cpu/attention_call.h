// How attention_cpu talks to its per-ISA kernels: a call, and tiles of its work.
// Filled by kernels/cpu/attention_cpu.cpp, read by the per-ISA kernels; plain data, no std types with code.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/shared/params.h"

namespace rapt::cpu {

// One call, as the kernels see it.
struct Call : AttentionParams {
  int weight_terms = 0;  // weights as so many E4M3 terms (pv=fp8: 1, fp8x2: 2); 0: in f32
};

// Some rows of one sequence and kv head, over some of its keys. Row f of the sequence belongs to query head
// head_q + f / seqlen_q and query f % seqlen_q, so that short sequences of grouped heads share one tile.
struct Tile {
  int64_t batch = 0, head_k = 0, head_q = 0;
  int64_t first_row = 0;
  int rows = 0;
  int64_t seqlen_q = 0, seqlen_k = 0, offset = 0;
  int64_t first_q = 0, first_k = 0;    // packed rows where the sequence begins; 0 when dense
  int64_t key_begin = 0, key_end = 0;  // multiples of block_n, or the end
  float* partial = nullptr;            // null: write out and lse. Else the state: max[M], sum[M], o[M][head_dim_v]
};

// One instruction set's kernels.
struct AttentionKernel {
  // Bytes of scratch (64-byte aligned) that one thread needs.
  size_t (*scratch_bytes)(const AttentionParams& call, int block_m);
  void (*attend)(const Call& call, const Tile& tile, int block_m, void* scratch);
  // Merges the states that `attend` left in `parts` places, `stride` floats apart, and writes the tile's results.
  void (*combine)(const AttentionParams& call, const Tile& tile, int block_m, const float* states, int64_t stride,
                  int64_t parts, void* scratch);
};

// block_m: 8 is the kernel whose lanes are channels; 16, 32 and 64 those whose lanes are rows.
constexpr int narrow_rows = 8;

// Those of this build, each in a file isa_NAME.cpp. cmake/RaptIsa.cmake defines RAPT_CPU_ISAS for the library's own
// files as ISA(scalar) ISA(avx2) ...
#ifdef RAPT_CPU_ISAS
#define ISA(name) extern const AttentionKernel attention_##name;
RAPT_CPU_ISAS
#undef ISA
#endif

}  // namespace rapt::cpu
