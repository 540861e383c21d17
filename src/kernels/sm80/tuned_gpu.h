// The tiles of attention_sm80, by properties of the problem and the GPU. They were found on an H100
// (docs/lab-notebook.md); most of the measurements here are from an H200. On other architectures than Hopper the tiles
// are often smaller, so that the kernels do not spill registers. Host only.
#pragma once

#include <array>

#include "kernels/sm80/config.h"
#include "kernels/tuned.h"

namespace rapt {

// How the query rows fill the GPU. `few`: at most 5/4 tiles of 64 rows for each multiprocessor. `balanced`: a causal or
// local problem with dim <= 128 and fewer than 5 tiles of 128 rows for each multiprocessor. Its CTAs have different
// amounts of work. Head dims above 256: `few` is at most one tile of 64 rows for 16 multiprocessors. `balanced` means
// that two slices of each row tile still fit on the GPU at the same time.
enum class Sm80Rows : unsigned char { few, balanced, many };

// The properties that determine the tiles.
struct Sm80Traits {
  Sm80Rows rows;
  int dim;                   // the larger of head_dim and head_dim_v
  bool extra_registers;      // score modifications other than the scale, or f16 accumulation
  bool heavy_scores;         // operations on scores that need many registers (has_heavy_scores()), or f16 sums
  bool causal_or_local;      // each row has its own range of keys
  bool hopper;               // tiles were tuned on Hopper; elsewhere they are often smaller, to avoid spills
  bool fp8;                  // at least one tensor is FP8
  bool fine_grained_scales;  // descales differ within a head
  bool e4m3_kv;              // k and v E4M3, q f16 or E4M3: the FP8 case with the fewest registers
  bool small_smem;           // less than 128 KB of shared memory for a CTA: Ada and consumer Blackwell
  bool short_q;              // at most 16 query rows in a sequence
  bool tf32;                 // a product has TF32 operands: f32 tensors, or f16 beside bf16
  bool few_keys;             // at most 512 keys and no fine-grained scales. One stage then holds many keys
};

// Conditions on Sm80Traits. A row can leave out a condition, which then always holds.
struct Sm80Condition {
  int most_dim = 256;
  When extra_registers{}, heavy_scores{}, causal_or_local{}, hopper{}, fp8{}, fine_grained_scales{}, e4m3_kv{},
      small_smem{}, short_q{}, few_keys{}, tf32 = When::no;
};

struct Sm80TunedRow {
  Sm80Rows rows;
  Sm80Condition when;
  Sm80Config tiles;
  Measured measured;

  constexpr bool applies(const Sm80Traits& t) const {
    return rows == t.rows && t.dim <= when.most_dim && holds(when.extra_registers, t.extra_registers) &&
           holds(when.heavy_scores, t.heavy_scores) && holds(when.causal_or_local, t.causal_or_local) &&
           holds(when.hopper, t.hopper) && holds(when.fp8, t.fp8) &&
           holds(when.fine_grained_scales, t.fine_grained_scales) && holds(when.e4m3_kv, t.e4m3_kv) &&
           holds(when.small_smem, t.small_smem) && holds(when.short_q, t.short_q) && holds(when.few_keys, t.few_keys) &&
           holds(when.tf32, t.tf32);
  }
};

namespace detail {
constexpr auto sm80_rows() {
  using enum Sm80Rows;
  constexpr When no = When::no, yes = When::yes;
  constexpr bool keeps_q = true;  // Q stays in registers
  const auto tiles = [](int block_m, int block_n, int warps_m, int warps_n, int stages, bool q_in_registers = false,
                        int min_blocks = 1) {
    Sm80Config a;
    a.block_m = block_m, a.block_n = block_n, a.warps_m = warps_m, a.warps_n = warps_n, a.stages = stages;
    a.q_in_registers = q_in_registers, a.min_blocks = min_blocks;
    return a;
  };
  // Head dims above 256: warps_m x warps_n warps, buffers for k_piece channels of a block's keys, and at most v_slice
  // columns of the output for each CTA. configure() chooses v_piece.
  const auto wide_tiles = [tiles](int block_m, int block_n, int warps_m, int warps_n, int stages, int k_piece,
                                  int v_slice, int min_blocks = 1) {
    Sm80Config a = tiles(block_m, block_n, warps_m, warps_n, stages, false, min_blocks);
    a.k_piece = k_piece, a.v_slice = v_slice;
    return a;
  };
  const auto row = [](Sm80Rows rows, Sm80Condition when, const Sm80Config& config, Measured measured = {}) {
    return Sm80TunedRow{rows, when, config, measured};
  };
  constexpr const char *named = "nvidia-h200/20261129T142000Z-named-43b3bd7.jsonl",
                       *scores = "nvidia-h200/20261130T094800Z-sm80-features.jsonl",
                       *octets = "nvidia-h200/20261130T175400Z-sm80-features.jsonl",
                       *fp8_peers = "nvidia-h200/20261128T124137Z-peers-fp8.jsonl";
  return std::array{
      // TF32 products. The tiles are not measured. A warp has 32 rows if the registers suffice, because it then splits
      // each element of K and V into terms once for 32 rows.
      row(few, {.most_dim = 128, .tf32 = yes}, tiles(32, 32, 2, 4, 2)),
      row(few, {.tf32 = yes}, tiles(32, 16, 2, 4, 1)),
      row(balanced, {.tf32 = yes}, tiles(64, 32, 4, 1, 2)),
      row(many, {.most_dim = 64, .hopper = no, .tf32 = yes}, tiles(64, 32, 4, 1, 2)),
      row(many, {.most_dim = 64, .extra_registers = yes, .tf32 = yes}, tiles(64, 32, 4, 1, 2)),
      row(many, {.most_dim = 64, .tf32 = yes}, tiles(128, 32, 4, 1, 2)),
      row(many, {.most_dim = 128, .tf32 = yes}, tiles(64, 32, 4, 1, 2)),
      row(many, {.tf32 = yes}, tiles(128, 16, 8, 1, 2)),

      // The keys are split among four warps (split-KV in the CTA). So the loop of each warp is shorter.
      row(few, {.most_dim = 64, .few_keys = yes}, tiles(32, 128, 2, 4, 1, keeps_q),
          {"f16 b1 h8 q512 k512 d64", 4.758, "nvidia-h200/20261129T175500Z-peers-f16.jsonl"}),
      row(few, {.most_dim = 64}, tiles(32, 64, 2, 4, 2, keeps_q)),
      row(few, {.most_dim = 128}, tiles(32, 32, 2, 4, 2, keeps_q),
          {"f16 b1 h32:8 q1 k32768 d128", 329.188, "nvidia-h200/20261129T143315Z-peers-named-f16.jsonl"}),
      row(few, {.fp8 = yes}, tiles(32, 32, 2, 4, 2)),
      row(few, {}, tiles(32, 16, 2, 4, 2)),

      // Small tiles balance the different amounts of work.
      row(balanced, {.extra_registers = yes, .heavy_scores = no, .hopper = yes, .fp8 = no},
          tiles(64, 96, 4, 1, 2, false, 2), {"bf16 b1 h32 q2048 k2048 d128 causal alibi", 142.992, scores}),
      row(balanced, {.extra_registers = yes}, tiles(64, 64, 4, 1, 2, false, 2)),
      row(balanced, {.fp8 = yes}, tiles(64, 64, 4, 1, 2, false, 2),
          {"e4m3 out=bf16 b1 h32 q1024 k1024 d128 causal scales=tensor", 42.774, fp8_peers}),
      row(balanced, {.hopper = no}, tiles(64, 64, 4, 1, 2, false, 2)),
      row(balanced, {.most_dim = 64}, tiles(64, 128, 4, 1, 2, false, 2)),
      row(balanced, {}, tiles(64, 96, 4, 1, 2, false, 2), {"f16 b1 h32 q1024 k1024 d128 causal", 39.8, named}),

      // FP8: block_n is 32 or 64, so that it divides the number of keys that share a descale.
      row(many, {.most_dim = 64, .extra_registers = no, .hopper = yes, .fp8 = yes}, tiles(128, 64, 4, 1, 2),
          {"e4m3 out=bf16 b2 h24 q4096 k4096 d64 scales=tensor", 690.824, fp8_peers}),
      row(many, {.most_dim = 64, .fp8 = yes}, tiles(64, 64, 4, 1, 2)),
      row(many, {.extra_registers = yes, .fp8 = yes}, tiles(64, 32, 4, 1, 2)),
      row(many, {.hopper = no, .fp8 = yes}, tiles(64, 32, 4, 1, 2)),
      row(many, {.most_dim = 128, .fp8 = yes, .fine_grained_scales = yes}, tiles(64, 64, 4, 1, 2)),
      row(many, {.most_dim = 128, .causal_or_local = no, .fp8 = yes, .e4m3_kv = yes}, tiles(128, 64, 4, 1, 2),
          {"e4m3 out=bf16 b1 h16 q16384 k16384 d128 scales=tensor", 5697.256, fp8_peers}),
      row(many, {.most_dim = 128, .fp8 = yes}, tiles(128, 32, 4, 1, 3),
          {"e4m3 out=bf16 b1 h32 q4096 k4096 d128 causal scales=tensor", 465.688, fp8_peers}),
      row(many, {.fp8 = yes}, tiles(128, 64, 8, 1, 2),
          {"e4m3 out=bf16 b1 h8 q8192 k8192 d256 scales=tensor", 1609.16, fp8_peers}),

      row(many, {.most_dim = 64, .extra_registers = yes, .heavy_scores = no, .hopper = yes}, tiles(128, 64, 4, 1, 2),
          {"bf16 b4 h16 q1024 k1024 d64 mask=[b,1,q,k]", 84.328, octets}),
      row(many, {.most_dim = 64, .extra_registers = yes}, tiles(64, 64, 4, 1, 2)),
      row(many, {.most_dim = 64, .causal_or_local = yes}, tiles(128, 64, 4, 1, 2),
          {"f16 b4 h32 q4096 k4096 d64 causal", 1036.128, "nvidia-h100-80gb-hbm3/20261128T082615Z-peers-sweep.jsonl"}),
      row(many, {.most_dim = 64, .hopper = no}, tiles(128, 64, 4, 1, 2)),
      row(many, {.most_dim = 64}, tiles(128, 128, 4, 1, 2), {"f16 b2 h24 q4096 k4096 d64", 630.328, named}),
      row(many, {.most_dim = 128, .extra_registers = no, .hopper = yes}, tiles(128, 64, 4, 1, 2),
          {"f16 b1 h32 q4096 k4096 d128 causal", 423.852, named}),
      row(many, {.small_smem = yes}, tiles(64, 32, 4, 1, 2)),
      row(many, {.most_dim = 128}, tiles(64, 64, 4, 1, 2)),
      row(many, {.hopper = no}, tiles(128, 32, 8, 1, 2)),
      row(many, {.extra_registers = yes}, tiles(128, 32, 8, 1, 2)),
      row(many, {.causal_or_local = yes}, tiles(128, 64, 8, 1, 2)),
      row(many, {}, tiles(128, 80, 8, 1, 2), {"f16 b1 h8 q8192 k8192 d256", 1627.04, named}),

      // Head dims above 256. Not measured. With few row tiles, the columns of the output are divided among CTAs.
      row(few, {.most_dim = 576}, wide_tiles(16, 16, 1, 8, 4, 64, 128)),
      row(balanced, {.most_dim = 576, .short_q = yes}, wide_tiles(16, 16, 1, 8, 4, 64, 256)),
      row(many, {.most_dim = 576, .short_q = yes}, wide_tiles(16, 16, 1, 8, 4, 64, 512)),
      row(balanced, {.most_dim = 576, .small_smem = yes}, wide_tiles(32, 16, 1, 8, 3, 64, 256)),
      row(many, {.most_dim = 576, .small_smem = yes}, wide_tiles(32, 16, 1, 8, 3, 64, 512)),
      row(balanced, {.most_dim = 576, .hopper = no}, wide_tiles(64, 32, 2, 4, 4, 64, 256)),
      row(many, {.most_dim = 576, .heavy_scores = yes}, wide_tiles(64, 16, 2, 4, 4, 64, 512)),
      row(many, {.most_dim = 576, .hopper = no}, wide_tiles(64, 32, 2, 4, 4, 64, 512)),
      row(balanced, {.most_dim = 576}, wide_tiles(64, 32, 2, 4, 4, 128, 256)),
      row(many, {.most_dim = 576}, wide_tiles(64, 32, 2, 4, 4, 128, 512)),
  };
}
}  // namespace detail
inline constexpr std::array sm80_tuned_rows = detail::sm80_rows();

}  // namespace rapt
