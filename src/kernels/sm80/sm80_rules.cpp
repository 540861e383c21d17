// See sm80_rules.h.
#include "kernels/sm80/sm80_rules.h"

#include "kernels/config_rules.h"
#include "kernels/rules.h"
#include "kernels/sm80/sm80.h"

namespace rapt {

bool has_fp8_mma(const Device& device) { return arch_number(device.arch) == 89 || arch_number(device.arch) >= 120; }

bool has_tf32(const Problem& p) {
  return p.q == DType::f32 || p.k == DType::f32 || p.v == DType::f32 || (is_16bit(p.q) && is_16bit(p.k) && p.q != p.k);
}

bool has_fp8(const Problem& p) { return is_tensor_core_fp8(p.q) || is_tensor_core_fp8(p.k) || is_tensor_core_fp8(p.v); }

bool accepts_formats(const char* name, const Problem& p, std::string* why) {
  for (const auto& [tensor, dtype] : {std::pair{"q", p.q}, {"k", p.k}, {"v", p.v}})
    if (dtype != DType::f32 && !is_16bit(dtype) && !is_tensor_core_fp8(dtype))
      return refuse(name, why, tensor, "=", name_of(dtype), ": must be f32, f16, bf16, e4m3 or e5m2");
  if (has_tf32(p) && has_fp8(p))
    return refuse(name, why, "q=", name_of(p.q), " k=", name_of(p.k), " v=", name_of(p.v),
                  ": FP8 is not supported with f32, or with q and k of different 16-bit types");
  if (p.softcap && p.acc != AccMode::tf32 && (p.q == DType::f32 || p.k == DType::f32))
    return refuse(name, why, "softcap with q=", name_of(p.q), " k=", name_of(p.k),
                  ": a soft cap makes large scores small again, so the errors of TF32 products would be too large");
  // attention_scalar has no other kinds of sums, so calls that ask for them stay here.
  if (p.acc == AccMode::f32 && refused_for_softcap(name, p, why)) return false;
  if (p.acc == AccMode::f16 && (p.q != DType::f16 || p.k != DType::f16 || p.v != DType::f16))
    return refuse(name, why, "acc=f16, q=", name_of(p.q), " k=", name_of(p.k), " v=", name_of(p.v),
                  ": only products of f16 are summed in f16");
  if (p.smooth_k && p.softcap)
    return refuse(name, why, "softcap with smooth_k: not supported, k_mean would have to be added before the cap");
  return true;
}

// Checks head_dim and head_dim_v. The kernel copies rows in chunks of 16 bytes.
bool accepts_dims(const char* name, const Problem& p, const Device& device, std::string* why) {
  const bool wide = is_16bit(p.q) && p.k == p.q && is_16bit(p.v) && p.acc != AccMode::f16;
  const int64_t most = wide ? largest_wide_dim : largest_dim, most_v = wide ? largest_wide_dim_v : largest_dim;
  const struct {
    const char* tensor;
    DType dtype;
    int64_t dim, most;
  } rows[] = {{"q", p.q, p.head_dim, most},
              {"k", p.k, p.head_dim, most},
              {"v", p.v, p.head_dim_v, most_v},
              {"out", p.out, p.head_dim_v, most_v}};
  for (const auto& row : rows) {
    const int64_t multiple = is_tensor_core_fp8(row.dtype) ? 16 : 8;
    if (row.dim < multiple || row.dim % multiple != 0 || row.dim > row.most)
      return refuse(name, why, "head_dim ", p.head_dim, ":", p.head_dim_v, ", ", row.tensor, "=", name_of(row.dtype),
                    ": must be multiples of ", multiple, " up to ", row.most);
  }
  // Two-level accumulation needs a second accumulator. With head_dim_v above 192, there are no registers left for it.
  const bool two_level_accum = p.v_scales == ScaleKind::token || (rows_sharing(p.v_scales) > 0 && !has_fp8_mma(device));
  if (two_level_accum && p.head_dim_v > 192)
    return refuse(name, why, "head_dim_v ", p.head_dim_v, " with per-key v_scales: must be at most 192 on ",
                  device.arch);
  return true;
}

bool accepts_layouts(const char* name, const Problem& p, std::string* why) {
  for (const auto& [tensor, access] :
       {std::pair{"q", &p.access_q}, {"k", &p.access_k}, {"v", &p.access_v}, {"out", &p.access_out}})
    if (!access->unit_last || !access->aligned16)
      return refuse(name, why, tensor, ": rows must be contiguous, and base and strides multiples of 16 bytes");
  if (p.seqlen_q >= Band::longest || p.seqlen_k >= Band::longest)
    return refuse(name, why, "seqlens ", p.seqlen_q, " and ", p.seqlen_k, ": must be below ", Band::longest);
  return true;
}

// The kernel can compute exp2(s * c - m * c) with one FMA if two conditions hold: nothing but masks follows the scale
// or the soft cap, and c is a positive normal number. Descales come from tensors, so the planner does not know how they
// change the argument of a soft cap.
bool can_scale_in_exp2(const Problem& p, bool fp8) {
  if (p.bias.present() || p.alibi) return false;
  if (p.softcap) return has_moderate_softcap(p) && !fp8;
  const ScaleClass scale = scale_class(p);
  return scale == ScaleClass::moderate || scale == ScaleClass::positive;
}

// Octets change the order of the keys, and `invariant` allows only one order.
bool can_load_octets(const Problem& p) {
  return common_score_access(p).octets && !p.invariant && rows_sharing(p.k_scales) != 1 &&
         rows_sharing(p.v_scales) != 1;
}

bool has_far_positions(const Problem& p) { return p.alibi && !has_exact_alibi(p); }

namespace {
void configure_fp8(const Problem& p, const Device& device, Sm80Config& a) {
  a.fp8_qk = is_tensor_core_fp8(p.q) && is_tensor_core_fp8(p.k) && has_fp8_mma(device);
  a.p_terms = p.pv == PvMode::fp8 ? 1 : p.pv == PvMode::fp8x2 ? 2 : 0;
  a.fp8_pv = a.p_terms > 0 && has_fp8_mma(device);
  a.q_row_descales = rows_sharing(p.q_scales) > 0;
  a.k_descale_block = rows_sharing(p.k_scales), a.v_descale_block = rows_sharing(p.v_scales);
  a.v_channel_descales = p.v_scales == ScaleKind::channel;
  a.key_mean = p.smooth_k && (p.lse || p.sinks);  // k_mean changes only lse and the sink's weight
  // Ada's tensor cores truncate FP8 accumulation (docs/fp8.md).
  a.promotion_interval = a.fp8_pv && arch_number(device.arch) == 89 ? 64 : 0;
}
}  // namespace

void configure_variant(const Problem& p, const Device& device, Sm80Config& a) {
  a.q = p.q, a.k = p.k, a.v = p.v, a.out = p.out;
  a.head_dim = static_cast<int>(p.head_dim), a.head_dim_v = static_cast<int>(p.head_dim_v);
  a.scale_in_exp2 = can_scale_in_exp2(p, has_fp8(p));
  a.pairs = common_score_access(p).pairs;
  a.far_positions = has_far_positions(p);
  a.softcap = p.softcap.has_value(), a.bias = p.bias.dtype, a.alibi = p.alibi, a.mask = p.mask.present();
  a.causal_or_local = p.position_mask.present();
  a.paged = p.page_size > 0;
  a.f16_accumulate = p.acc == AccMode::f16;
  a.single_tf32 = p.acc == AccMode::tf32;
  if (has_fp8(p)) configure_fp8(p, device, a);
}

// Checks the conditions of the static_asserts in attention_sm80.cuh, and that block_n divides the number of keys that
// share a descale.
void check_mma_tiles(const Sm80Config& c) {
  const Sm80Layout layout(c);
  require_multiple("block_m", c.block_m, 16 * c.warps_m);  // a warp has whole m16 tiles
  if (layout.tf32_qk && c.q_in_registers)
    bad_config("q_in_registers", 1, "must be 0 if q and k are f32, or of different 16-bit types");
  if (c.octets) require_multiple("block_n", c.block_n, 32);
  const int mma_k = c.fp8_pv ? 32 : 16;  // k of the PV mma
  require_multiple("block_n", c.block_n, layout.widens_k ? 32 : mma_k);
  for (const int sharing : {c.k_descale_block, c.v_descale_block})
    if (sharing > 1 && sharing % c.block_n != 0)
      bad_config("block_n", c.block_n, "must divide ", sharing, ", the keys that share a descale");
  require_multiple("promotion_interval", c.promotion_interval, mma_k);
  if (c.promotion_interval > 0 && c.promotion_interval < c.block_n && c.block_n % c.promotion_interval != 0)
    bad_config("promotion_interval", c.promotion_interval, "must divide block_n = ", c.block_n, " or be no smaller");
}

void choose_pieces(Sm80Config& a, int bytes) {
  const int row_bytes = 2 * a.k_piece;
  const auto set_pieces = [&](int buffer) {
    a.k_piece = std::min(buffer / (2 * a.cta_block_n()), round_up(a.head_dim, 16)) / 16 * 16;
    a.v_piece = a.cta_block_n();
    while (a.v_piece > 16 && 2 * a.v_piece * Sm80WideLayout(a).columns > buffer) a.v_piece /= 2;
  };
  int buffer = a.cta_block_n() * row_bytes;
  set_pieces(buffer);
  while (smem_bytes(a) > bytes && a.stages > 2) --a.stages;
  while (smem_bytes(a) > bytes && a.k_piece > 16 && a.v_piece > 16) set_pieces(buffer /= 2);
  while (smem_bytes(a) > bytes && a.block_m > 16 * a.warps_m) a.block_m /= 2;
}

void check_pieces(const Sm80Config& c) {
  if (c.stages < 2) bad_config("stages", c.stages, "must be at least 2 with k_piece > 0");
  if (c.q_in_registers) bad_config("q_in_registers", 1, "must be 0 with k_piece > 0");
  if ((c.warps_n & (c.warps_n - 1)) != 0) bad_config("warps_n", c.warps_n, "must be a power of two with k_piece > 0");
  if (c.v_in_k && c.k_piece < c.head_dim)
    bad_config("k_piece", c.k_piece, "must be at least ", c.head_dim, ", because V is read from the block of K");
  require_multiple("k_piece", c.k_piece, 16);
  require_multiple("v_piece", c.v_piece, 16);
  if (c.cta_block_n() % c.v_piece != 0)
    bad_config("v_piece", c.v_piece, "must divide block_n * warps_n = ", c.cta_block_n());
  for (const int chunks : {round_up(c.head_dim, 16) / 8, Sm80WideLayout(c).columns / 8, c.k_piece / 8})
    if (chunks > c.threads())
      bad_config("warps_m", c.warps_m, "a CTA needs at least ", chunks, " threads to copy a row");
}

}  // namespace rapt
