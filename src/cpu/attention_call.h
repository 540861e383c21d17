// The interface between attention_cpu and its per-ISA kernels: a call and its work tiles. Filled by
// kernels/cpu/attention_cpu.cpp, read by the per-ISA kernels. It contains only plain data. Inline code of std types
// would be compiled once for each instruction set, which breaks the one-definition rule (ODR).
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/shared/params.h"

namespace rapt::cpu {

// The parameters of one call.
struct Call : AttentionParams {
  int p_terms = 0;  // P is rounded to this many E4M3 terms (pv=fp8: 1, fp8x2: 2); 0: f32
};

// A work tile: some rows of one sequence and kv head, over a range of keys. Row f of the sequence is query f % seqlen_q
// of query head head_q + f / seqlen_q, so that several query heads of a kv head can share a tile (pack GQA).
struct Tile {
  int64_t batch = 0, head_k = 0, head_q = 0;
  int64_t first_row = 0;
  int rows = 0;
  int64_t seqlen_q = 0, seqlen_k = 0, offset = 0;
  int64_t first_q = 0, first_k = 0;    // packed rows at which the sequence begins; 0 if dense
  int64_t key_begin = 0, key_end = 0;  // multiples of block_n, or seqlen_k
  float* partial = nullptr;            // null: write out and lse; else store max[M], sum[M], o[M][head_dim_v] here
};

// The kernels of one instruction set.
struct AttentionKernel {
  // Bytes of scratch (64-byte aligned) per thread.
  size_t (*scratch_bytes)(const AttentionParams& call, int block_m);
  void (*attend)(const Call& call, const Tile& tile, int block_m, void* scratch);
  // Combines the `parts` partial states that `attend` stored, `stride` floats apart, and writes the tile's results.
  void (*combine)(const AttentionParams& call, const Tile& tile, int block_m, const float* states, int64_t stride,
                  int64_t parts, void* scratch);
};

// block_m of the narrow layout (lanes are channels). The wide layout (lanes are rows) has block_m 16, 32 and 64.
constexpr int narrow_rows = 8;

// The kernels in this build, each defined in isa_NAME.cpp. cmake/RaptIsa.cmake defines RAPT_CPU_ISAS as ISA(scalar)
// ISA(avx2) ...
#ifdef RAPT_CPU_ISAS
#define ISA(name) extern const AttentionKernel attention_##name;
RAPT_CPU_ISAS
#undef ISA
#endif

}  // namespace rapt::cpu
