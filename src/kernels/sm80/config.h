// Sm80Config: the compile-time choices of attention_sm80. Chosen by attention_sm80.cpp, read by the kernel.
#pragma once

#include "../shared/variant.h"

namespace rapt {

struct Sm80Config : AttentionVariant {
  // Tiles: block_m query rows a thread block; block_n keys that a warp takes at a time; warps_m x warps_k warps, the
  // rows dealt to warps_m of them and the keys of a step (block_n * warps_k) to warps_k; key steps held at once.
  int block_m = 0, block_n = 0, warps_m = 0, warps_k = 1, stages = 2;
  bool q_in_registers = false;  // else query fragments are read from shared memory again for each key step
  int min_blocks = 1;           // thread blocks that must fit on an SM: bounds the registers

  // With no operation on a score but `bounded` and a positive scale: exp2(s * c - m * c) in one fused operation,
  // c = scale * log2(e).
  bool folded = true;
  bool bounded = false;  // causal or window: each row has its own range of keys

  // sm_90 and newer: programmatic dependent launch. The block waits itself for the kernel before it on the stream, so
  // that its start overlaps with that one's end.
  bool programmatic = false;

  bool f16_accumulate = false;  // acc=f16: products of a tile are summed in half precision

  // Quantised inputs. Descales of a whole tensor or head are values; these say which others there are.
  bool fp8_scores = false;      // q.k by FP8 instructions; else codes are widened to 16 bits first
  bool fp8_values = false;      // p.v likewise
  bool row_scales = false;      // q's descale differs from row to row: token, block64, block128
  int key_scales = 0;           // k's: keys that share a descale (1, 64, 128); 0: all
  int value_scales = 0;         // v's likewise
  bool channel_scales = false;  // v's differs from channel to channel
  int flush_keys = 0;           // products with V of so many keys are summed by themselves, then joined in f32; 0: all

  constexpr int threads() const { return 32 * warps_m * warps_k; }
  constexpr int step_keys() const { return block_n * warps_k; }
  // Rows of a tile may see different keys, so that a key can be hidden from one and seen by another.
  constexpr bool row_masks() const { return bounded || mask || bias != DType::none; }

  constexpr bool operator==(const Sm80Config&) const = default;
};

}  // namespace rapt
