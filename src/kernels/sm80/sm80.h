// The kernel parameter and the shared memory layout of attention_sm80. Compiled by its host and device code; includes
// nothing outside shared/.
#pragma once

#include "../shared/params.h"
#include "../shared/tile_scheduler.h"
#include "config.h"

namespace rapt {

struct Sm80Params {
  AttentionParams attention;
  TileScheduler scheduler;
};

constexpr int round_up(int n, int multiple) { return (n + multiple - 1) / multiple * multiple; }

// The layout of Q, K and V in shared memory. Elements have the same types as in the tensors, except for Q: FP8 Q is
// converted to 16 bits in shared memory unless QK^T uses FP8 mma. Head dims are rounded up to one fragment load: 32
// bytes of a row of Q or K, or 16 channels for TF32 products; 16 channels of V, or 32 if FP8 V is converted to 16 bits.
struct Sm80Layout {
  bool k_codes, v_codes, widens_q, widens_k, widens_v;
  bool tf32_qk, tf32_pv;     // TF32 products (tf32.cuh): for f32, and if one of q and k is f16 and the other bf16
  bool rescales_q;           // bf16 Q becomes f16, each row times a power of two, because FP8 K converts fastest to f16
  int dim, dim_v;            // elements of a row, rounded up as above
  int q_row, k_row, v_row;   // bytes of a row
  DType qk_dtype, pv_dtype;  // mma operand types; FP8 P is E4M3

  constexpr explicit Sm80Layout(const Sm80Config& c)
      : k_codes(is_tensor_core_fp8(c.k)),
        v_codes(is_tensor_core_fp8(c.v)),
        widens_q(is_tensor_core_fp8(c.q) && !c.fp8_qk),
        widens_k(k_codes && !c.fp8_qk),
        widens_v(v_codes && !c.fp8_pv),
        tf32_qk(c.q == DType::f32 || c.k == DType::f32 || (is_16bit(c.q) && is_16bit(c.k) && c.q != c.k)),
        tf32_pv(c.v == DType::f32),
        rescales_q(widens_k && c.q == DType::bf16),
        dim(round_up(c.head_dim, k_codes ? 32 : 16)),
        dim_v(round_up(c.head_dim_v, widens_v ? 32 : 16)),
        q_row(c.fp8_qk            ? dim
              : c.q == DType::f32 ? 4 * dim
                                  : 2 * dim),
        k_row(bytes_of(c.k) * dim),
        v_row(bytes_of(c.v) * dim_v),
        qk_dtype(c.fp8_qk                  ? c.q
                 : k_codes                 ? DType::f16
                 : is_tensor_core_fp8(c.q) ? c.k
                                           : c.q),
        pv_dtype(widens_v ? DType::f16 : c.v) {}

  // TF32 operands of `type` are a sum of this many terms.
  static constexpr int terms(const Sm80Config& c, DType type) { return type == DType::f32 && !c.single_tf32 ? 2 : 1; }
  // The number of neighbouring channels of V that a lane has (ChannelPair). They belong to different n-tiles. TF32: if
  // O has many registers, lanes load less at a time.
  constexpr int lane_channels() const { return tf32_pv && dim_v % 32 == 0 && dim_v <= 128 ? 4 : 2; }
  // The number of k8 steps of PV that tensor cores sum, for TF32.
  constexpr int v_steps() const { return dim_v <= 128 ? 2 : 1; }
};

// Returns whether scale_log2 differs from row to row, because of row descales of Q or rescaled rows of Q.
constexpr bool has_row_scales(const Sm80Config& c) {
  return c.scale_in_exp2 && (c.q_row_descales || Sm80Layout(c).rescales_q);
}

// Returns whether the epilogue writes f32 rows to shared memory instead of 16-bit rows. It does so to combine warps,
// and for f32 output.
constexpr bool has_f32_epilogue(const Sm80Config& c) { return c.warps_n > 1 || !is_16bit(c.out); }
constexpr int f32_epilogue_pitch(const Sm80Config& c) { return round_up(c.head_dim_v, 32) + 8; }  // floats per row

// Bytes of dynamic shared memory, for Q and `stages` buffers of K and V. The epilogue reuses the same bytes.
constexpr int smem_bytes(const Sm80Config& c) {
  const Sm80Layout l(c);
  const int tiles = c.block_m * (l.q_row + (l.rescales_q ? 4 : 0)) + c.stages * c.cta_block_n() * (l.k_row + l.v_row);
  const int out = has_f32_epilogue(c)
                      ? 4 * c.block_m * (c.warps_n * (f32_epilogue_pitch(c) + 2) + (has_row_scales(c) ? 1 : 0))
                      : 2 * c.block_m * l.dim_v;
  return tiles > out ? tiles : out;
}

}  // namespace rapt
