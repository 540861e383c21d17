// What attention_sm80's host and device halves agree on: its parameter block and its shared memory.
// Compiled by both; includes nothing outside shared/.
#pragma once

#include "../shared/config.h"
#include "../shared/params.h"
#include "../shared/schedule.h"

namespace rapt {

struct Sm80Params {
  AttentionParams attention;
  TileOrder order;
};

constexpr int round_up(int n, int multiple) { return (n + multiple - 1) / multiple * multiple; }

// How the tensors lie in attention_sm80's shared memory. Codes of K and V stay codes; those of Q are widened there
// unless scores come from FP8 instructions. Dims are rounded up to what one load of a fragment takes: 32 bytes of a row
// of Q or K, 16 channels of V or 32 where codes of V are widened.
struct Sm80Layout {
  bool k_codes, v_codes, widens_q, widens_k, widens_v;
  bool rescales_q;          // bf16 rows of Q become f16 ones times a power of two, which widened keys are fastest for
  int dim, dim_v;           // elements of a row, rounded up
  int q_row, k_row, v_row;  // bytes of a row
  DType score, value;       // operands of q.k and of p.v (codes of P are E4M3)

  constexpr explicit Sm80Layout(const AttentionConfig& c)
      : k_codes(is_code(c.k)),
        v_codes(is_code(c.v)),
        widens_q(is_code(c.q) && !c.fp8_scores),
        widens_k(k_codes && !c.fp8_scores),
        widens_v(v_codes && !c.fp8_values),
        rescales_q(widens_k && c.q == DType::bf16),
        dim(round_up(c.head_dim, k_codes ? 32 : 16)),
        dim_v(round_up(c.head_dim_v, widens_v ? 32 : 16)),
        q_row(c.fp8_scores ? dim : 2 * dim),
        k_row(k_codes ? dim : 2 * dim),
        v_row(v_codes ? dim_v : 2 * dim_v),
        score(c.fp8_scores   ? c.q
              : k_codes      ? DType::f16
              : is_code(c.q) ? c.k
                             : c.q),
        value(widens_v ? DType::f16 : c.v) {}
};

// Whether folded logits of each row have a factor of their own: descales by row, rewritten rows of Q.
constexpr bool has_row_factors(const AttentionConfig& c) {
  return c.folded && (c.row_scales || Sm80Layout(c).rescales_q);
}

// Whether output leaves attention_sm80 through f32 rows in shared memory, to be merged, rather than as 16-bit rows.
constexpr bool merges_output(const AttentionConfig& c) { return c.warps_k > 1 || !is_16bit(c.out); }
constexpr int merge_pitch(const AttentionConfig& c) { return round_up(c.head_dim_v, 32) + 8; }  // floats of a row

// Dynamic shared memory of attention_sm80: the rows of Q and `stages` steps of K and V; the same bytes later hold the
// output, or what is merged.
constexpr int smem_bytes(const AttentionConfig& c) {
  const Sm80Layout l(c);
  const int tiles = c.block_m * (l.q_row + (l.rescales_q ? 4 : 0)) + c.stages * c.step_keys() * (l.k_row + l.v_row);
  const int out = merges_output(c) ? 4 * c.block_m * (c.warps_k * (merge_pitch(c) + 2) + (has_row_factors(c) ? 1 : 0))
                                   : 2 * c.block_m * l.dim_v;
  return tiles > out ? tiles : out;
}

}  // namespace rapt
