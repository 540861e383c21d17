// What one attention call means to the CPU kernels: raw addresses, strides in elements, run-time values.
// Filled by kernels/attention_cpu.cpp, read by the per-ISA kernels; plain data, no std types with code.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/shared/dtype.h"
#include "kernels/shared/mask.h"

namespace rapt::cpu {

// Element (b, h, s, d) at b*batch + h*head + s*row + d*column elements. Packed tensors have batch = 0.
struct TensorRef {
  void* data = nullptr;
  DType dtype = DType::none;
  int64_t batch = 0, head = 0, row = 0, column = 0;

  bool present() const { return data != nullptr; }
  int64_t index(int64_t b, int64_t h, int64_t s) const { return b * batch + h * head + s * row; }
};

// bias or mask element (b, h, i, j); broadcast dimensions have stride 0.
struct BroadcastRef {
  const void* data = nullptr;
  DType dtype = DType::none;
  int64_t batch = 0, head = 0, query = 0, key = 0;
  bool present() const { return dtype != DType::none; }
};

// Descale factors. `rows` is how many sequence positions share a factor: 1 token, 64 or 128 block, 0 whole sequence.
struct ScaleRef {
  const float* data = nullptr;
  int64_t batch = 0, head = 0, position = 0, channel = 0;  // strides; channel != 0 only for per-channel V
  int64_t rows = 0;
  bool packed_rows = false;  // position counts packed rows (token scales of varlen), not rows of the sequence

  bool present() const { return data != nullptr; }
  // Factor of position s of the sequence whose first packed row is first; channel scales: of channel 0.
  const float* at(int64_t b, int64_t h, int64_t first, int64_t s) const {
    const int64_t p = rows == 0 ? 0 : (packed_rows ? first + s : s) / rows;
    return data + b * batch + h * head + p * position;
  }
};

struct AttentionCall {
  TensorRef q, k, v, out, lse;  // lse: f32, column unused
  ScaleRef q_scale, k_scale, v_scale;
  BroadcastRef bias, mask;
  const float* alibi_slopes = nullptr;
  int64_t alibi_batch = 0, alibi_head = 0;
  const float* sinks = nullptr;
  int64_t sinks_head = 0;
  int64_t group = 1;  // query heads per kv head
  int64_t head_dim = 0, head_dim_v = 0;
  float scale = 1.0f;
  float softcap = 0.0f;  // 0 = none
  PositionMask position_mask;
  int block_n = 0;  // keys per tile; tiles begin at multiples of it from key 0
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
  size_t (*scratch_bytes)(const AttentionCall& call, int block_m);
  void (*attend)(const AttentionCall& call, const Tile& tile, int block_m, void* scratch);
  // Merges the states that `attend` left in `parts` places, `stride` floats apart, and writes the tile's results.
  void (*combine)(const AttentionCall& call, const Tile& tile, int block_m, const float* states, int64_t stride,
                  int64_t parts, void* scratch);
};

// block_m: 8 is the kernel whose lanes are channels; 16, 32 and 64 those whose lanes are rows.
constexpr int narrow_rows = 8;

extern const AttentionKernel attention_scalar;
extern const AttentionKernel attention_avx2;
extern const AttentionKernel attention_avx512;
extern const AttentionKernel attention_avx512_bf16;
extern const AttentionKernel attention_neon;

}  // namespace rapt::cpu
