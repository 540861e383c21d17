// attention_sm90, host half: attention on 16-bit and FP8 tensors by Hopper's own instructions (sm_90a). The kernel is
// attention_sm90.cuh. This file decides which problems the kernel accepts, and configures it. launch.cpp describes the
// launch, choice.cpp chooses tiles.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "kernels/config_rules.h"
#include "kernels/family.h"
#include "kernels/rules.h"
#include "kernels/sm90/choice_gpu.h"
#include "kernels/sm90/launch_gpu.h"
#include "kernels/sm90/sm90.h"

namespace rapt {
namespace {

constexpr const char *name = "attention_sm90", *text = "sm90/attention_sm90.cuh";

constexpr ConfigField config_fields[] = {
    config_field<Sm90PlanConfig, &Sm90PlanConfig::q>("q"),
    config_field<Sm90PlanConfig, &Sm90PlanConfig::k>("k"),
    config_field<Sm90PlanConfig, &Sm90PlanConfig::v>("v"),
    config_field<Sm90PlanConfig, &Sm90PlanConfig::out>("out"),
    config_field<Sm90PlanConfig, &Sm90PlanConfig::head_dim>("head_dim"),
    config_field<Sm90PlanConfig, &Sm90PlanConfig::head_dim_v>("head_dim_v"),
    config_field<Sm90PlanConfig, &Sm90PlanConfig::softcap>("softcap"),
    config_field<Sm90PlanConfig, &Sm90PlanConfig::bias>("bias"),
    config_field<Sm90PlanConfig, &Sm90PlanConfig::alibi>("alibi"),
    config_field<Sm90PlanConfig, &Sm90PlanConfig::mask>("mask"),
    config_field<Sm90PlanConfig, &Sm90PlanConfig::warpgroups, 1, 2, 3, 4>("warpgroups", ConfigRole::tunable),
    config_field<Sm90PlanConfig, &Sm90PlanConfig::block_n, 64, 80, 96, 112, 128, 144, 160, 176, 192>(
        "block_n", ConfigRole::tunable),
    config_field<Sm90PlanConfig, &Sm90PlanConfig::q_stages, 1, 2>("q_stages", ConfigRole::tunable),
    config_field<Sm90PlanConfig, &Sm90PlanConfig::kv_stages, 2, 3, 4, 5, 6, 8>("kv_stages", ConfigRole::tunable),
    config_field<Sm90PlanConfig, &Sm90PlanConfig::ping_pong, false, true>("ping_pong", ConfigRole::tunable),
    config_field<Sm90PlanConfig, &Sm90PlanConfig::causal_or_local>("causal_or_local", ConfigRole::tunable),
    config_field<Sm90PlanConfig, &Sm90PlanConfig::packed_heads>("packed_heads", ConfigRole::tunable),
    config_field<Sm90PlanConfig, &Sm90PlanConfig::pairs>("pairs"),
    config_field<Sm90PlanConfig, &Sm90PlanConfig::boxes>("boxes", ConfigRole::tunable),
    config_field<Sm90PlanConfig, &Sm90PlanConfig::bias_row>("bias_row"),
    config_field<Sm90PlanConfig, &Sm90PlanConfig::mask_row>("mask_row"),
    config_field<Sm90PlanConfig, &Sm90PlanConfig::page_rows>("page_rows"),
    config_field<Sm90PlanConfig, &Sm90PlanConfig::score_stages, 1, 2, 3>("score_stages", ConfigRole::tunable),
    config_field<Sm90PlanConfig, &Sm90PlanConfig::programmatic, false, true>("programmatic", ConfigRole::tunable),
    config_field<Sm90PlanConfig, &Sm90PlanConfig::p_terms>("p_terms"),
    config_field<Sm90PlanConfig, &Sm90PlanConfig::key_mean>("key_mean"),
    config_field<Sm90PlanConfig, &Sm90PlanConfig::q_row_descales>("q_row_descales"),
    config_field<Sm90PlanConfig, &Sm90PlanConfig::k_descale_block>("k_descale_block"),
    config_field<Sm90PlanConfig, &Sm90PlanConfig::v_channel_descales>("v_channel_descales"),
    config_field<Sm90PlanConfig, &Sm90PlanConfig::promotion_interval, 1024, 2048, 4096>("promotion_interval",
                                                                                        ConfigRole::tunable),
};
constexpr ConfigType config_table = config_type<Sm90PlanConfig>("Sm90Config", config_fields);

constexpr int largest_dim = 256;
constexpr int64_t longest_packed = int64_t{1} << 31;  // coordinates of a tensor map are 32-bit

int64_t div_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

constexpr int64_t most_converted_bytes = int64_t{1} << 30;

// The softmax divides by its factor: the scale, the soft cap, or 1 (scores.cuh).
bool accepts_scores(const Problem& p, std::string* why) {
  if (refused_for_softcap(name, p, why)) return false;
  if (p.softcap || p.bias.present() || p.alibi) return true;  // the score chain applies the scale
  if (scale_class(p) != ScaleClass::moderate)
    return refuse(name, why, "scale = ", p.softmax_scale(), ": scale * log2(e) must be from 2^-100 to 2^100");
  return true;
}

bool accepts_tensors(const Problem& p, std::string* why) {
  if (p.page_size % 8 != 0)
    return refuse(name, why, "page=", p.page_size, ": the number of keys in a page must be a multiple of 8");
  const bool fp8_k = is_tensor_core_fp8(p.k), fp8_v = is_tensor_core_fp8(p.v);
  if (is_16bit(p.q) ? !(p.k == p.q || fp8_k) : !(is_tensor_core_fp8(p.q) && fp8_k))
    return refuse(name, why, "q=", name_of(p.q), " k=", name_of(p.k),
                  ": must both be f16, bf16 or FP8, or q f16 or bf16 and k FP8");
  if (!fp8_v && !(is_16bit(p.v) && (p.v == p.q || is_tensor_core_fp8(p.q))))
    return refuse(name, why, "v=", name_of(p.v), ": must be FP8 or ",
                  is_16bit(p.q) ? concat(name_of(p.q), ", as q") : std::string("f16 or bf16"));
  if (p.acc == AccMode::f16) return refuse(name, why, "acc=f16: sums are in f32");
  const int64_t multiple = fp8_k || fp8_v ? 16 : 8;
  for (const int64_t dim : {p.head_dim, p.head_dim_v})
    if (dim % multiple != 0 || dim > largest_dim)
      return refuse(name, why, "head_dim ", p.head_dim, ":", p.head_dim_v, ": must be multiples of ", multiple,
                    " up to ", largest_dim);
  for (const auto& [tensor, access] : {std::pair{"q", &p.access_q}, {"k", &p.access_k}, {"v", &p.access_v}})
    if (!access->tma)
      return refuse(name, why, tensor, ": must be expressible as a tensor map (rows contiguous, base and strides ",
                    "positive multiples of 16 bytes below 2^40)");
  if (!p.access_out.unit_last || !p.access_out.aligned16)
    return refuse(name, why, "out: rows must be contiguous, and base and strides multiples of 16 bytes");
  return true;
}

bool accepts_scales(const Problem& p, std::string* why) {
  if (p.smooth_k && p.softcap)
    return refuse(name, why, "softcap with smooth_k: not supported, k_mean would have to be added before the cap");
  if (rows_sharing(p.v_scales) > 0)
    return refuse(name, why, "v_scales for each ", rows_sharing(p.v_scales) == 1 ? "token" : "block",
                  ": must be tensor, head or channel");
  if (Sm90Conversion(p).bytes() > most_converted_bytes)
    return refuse(name, why, "converted k and v take ", Sm90Conversion(p).bytes(), " bytes: must be at most ",
                  most_converted_bytes);
  return true;
}

bool accepts_sizes(const Problem& p, std::string* why) {
  const int64_t rows_q = p.varlen ? p.total_q : p.seqlen_q,
                rows_k = p.varlen && p.page_size == 0 ? p.total_k : p.seqlen_k;
  if (rows_q < 1 || rows_k < 1) return refuse(name, why, "queries ", rows_q, ", keys ", rows_k, ": must be at least 1");
  if (p.seqlen_q >= Band::longest || p.seqlen_k >= Band::longest)
    return refuse(name, why, "seqlens ", p.seqlen_q, " and ", p.seqlen_k, ": must be below ", Band::longest);
  if (rows_q >= longest_packed || rows_k >= longest_packed)
    return refuse(name, why, "packed rows ", rows_q, " and ", rows_k, ": must be below ", longest_packed);
  if (p.alibi && p.has_starts)
    return refuse(name, why, "alibi with starts: starts must be absent, because distances must be exact in f32");
  if (p.alibi && !has_exact_alibi(p))
    return refuse(name, why, "alibi with seqlens ", p.seqlen_q, " and ", p.seqlen_k, ": must be at most ",
                  longest_exact_alibi, ", because distances must be exact in f32");
  if (p.batch * p.heads_q > max_grid_x || p.batch * p.heads_q * div_up(p.seqlen_q, 64) > max_grid_x)
    return refuse(name, why, "batch * heads_q * tiles of rows: must be at most ", max_grid_x);
  return true;
}

bool accepts(const Problem& p, const Device& device, std::string* why) {
  if (refused_for_gpu(name, device, why) || refused_by_all(name, p, why)) return false;
  if (device.arch != "sm_90a")
    return refuse(name, why, device.arch, ": the kernel's instructions exist only on sm_90a");
  return accepts_scores(p, why) && accepts_tensors(p, why) && accepts_scales(p, why) && accepts_sizes(p, why);
}

// Sums of FP8 products over more keys lose too many bits (docs/fp8.md).
constexpr int longest_promotion = 4096;
int promotion_interval(const Problem& p, const Sm90Config& c) {
  return c.p_terms > 0 && p.seqlen_k > longest_promotion ? longest_promotion / c.block_n * c.block_n : 0;
}

// Returns how many keys of a page TMA copies at once. A page and a block both consist of whole groups of this size.
int page_rows_of(const Problem& p, int block_n) {
  const bool all_converted = Sm90Conversion(p).k_element > 0 && Sm90Conversion(p).v_element > 0;
  return p.page_size == 0 || all_converted ? 0 : static_cast<int>(std::gcd(p.page_size, int64_t{block_n}));
}

// Returns whether attention_sm90 is faster than attention_sm80 (docs/lab-notebook.md). A multiprocessor holds one CTA,
// which has at least 128 query rows. So with few tiles, most multiprocessors are idle. A plan with `invariant` must not
// depend on lengths. So one kernel, attention_decode, computes all lengths of such calls.
bool prefers(const Problem& p, const Device& device, std::string* why) {
  constexpr int64_t least_keys = 64;  // fewer were not measured
  const auto no = [&](const auto&... parts) { return refuse(name, why, parts..., ": attention_sm80 is faster"); };
  if (p.invariant) return refuse(name, why, "invariant: attention_decode computes all lengths");
  const TypicalLengths lengths = TypicalLengths::of(p);
  if (const int64_t keys = std::llround(lengths.k); keys < least_keys)
    return no(keys, " keys, fewer than ", least_keys);
  const Sm90Choice choice = choose_sm90_tiles(p, device);
  if (choice.us <= estimated_sm80_us(p, device)) return true;
  const int64_t heads = p.batch * p.heads_q / choice.tiles.packed_heads,
                tiles = heads * div_up(std::llround(lengths.q) * choice.tiles.packed_heads, choice.tiles.block_m());
  return no(tiles, " tiles of query rows for ", device.sm_count, " multiprocessors");
}

KernelConfig configure(const Problem& p, const Device& device) {
  Sm90PlanConfig a{choose_sm90_tiles(p, device).tiles};
  a.q = p.q, a.k = p.k, a.v = p.v, a.out = p.out;
  a.head_dim = static_cast<int>(p.head_dim), a.head_dim_v = static_cast<int>(p.head_dim_v);
  a.softcap = p.softcap.has_value(), a.bias = p.bias.dtype, a.alibi = p.alibi, a.mask = p.mask.present();
  a.pairs = common_score_access(p).pairs;
  a.p_terms = Sm90Conversion(p).p_terms;
  a.key_mean = p.smooth_k && (p.lse || p.sinks);  // k_mean changes only lse and the sink's weight
  a.q_row_descales = rows_sharing(p.q_scales) > 0, a.k_descale_block = rows_sharing(p.k_scales);
  a.v_channel_descales = p.v_scales == ScaleKind::channel;
  a.page_rows = page_rows_of(p, a.block_n);
  // Page lists need some shared memory, and converted V can need more than V.
  while (Sm90Layout(a).bytes > device.smem_per_block && a.kv_stages > 2) --a.kv_stages;
  a.promotion_interval = promotion_interval(p, a);
  a.blocks = device.sm_count;
  a.l2_kv_bytes = device.l2_bytes / 2;
  return {config_table, a};
}

// The workspace: converted K, converted V, and the f32 sums of two-level accumulation.
size_t partial_bytes(const Sm90PlanConfig& c) {
  return c.promotion_interval == 0
             ? 0
             : sizeof(float) * static_cast<size_t>(c.blocks) * 128 * static_cast<size_t>(c.warpgroups) *
                   static_cast<size_t>(Sm90Layout(c).dim_v / 2);
}
size_t workspace_bytes(const Problem& p, const KernelConfig& config) {
  return static_cast<size_t>(Sm90Conversion(p).bytes()) + partial_bytes(config.as<Sm90PlanConfig>());
}
size_t counter_bytes(const Problem&, const KernelConfig&) { return 4 * sizeof(unsigned); }

KernelUnit unit(const KernelConfig& config) {
  const auto& a = config.as<Sm90PlanConfig>();
  return {emit_unit(text, "attention_sm90", config_table, &a, "Sm90Params", "1"), a.threads(),
          static_cast<size_t>(Sm90Layout(a).bytes)};
}

void check_config(const ConfigChange& change) {
  require_planned(name, change);
  const auto &c = change.changed.as<Sm90PlanConfig>(), &chosen = change.chosen.as<Sm90PlanConfig>();
  if (Sm90Layout::pages(c) > 32)
    bad_config("block_n", c.block_n, "a block must have at most 32 copies of ", c.page_rows, " keys of a page");
  require_range("warpgroups", c.warpgroups, 1, 4);
  require_range("block_n", c.block_n, 16, 256);
  require_multiple("block_n", c.block_n, 16);
  if (c.page_rows != page_rows_of(change.problem, c.block_n))
    bad_config("block_n", c.block_n, "the greatest common divisor of block_n and the page size, ",
               change.problem.page_size, ", must be ", c.page_rows, ", as in the planner's choice");
  require_range("q_stages", c.q_stages, 1, 4);
  if (c.ping_pong && c.warpgroups == 1) bad_config("ping_pong", 1, "needs at least 2 warpgroups");
  require_range("kv_stages", c.kv_stages, 2, 16);
  // A warpgroup holds 64 rows of S, of P (16 bits) and of O in registers. `held` is the number of these registers in
  // one thread. The rest of the kernel needs about 24 registers.
  const int held = c.block_n / 2 + (c.p_terms == 1 ? c.block_n / 8 : c.block_n / 4) + Sm90Layout(c).dim_v / 2,
            most = c.consumer_registers() - 24;
  if (change.own_text && held > most)
    bad_config("block_n", c.block_n, "scores, weights and output of a thread take ", held,
               " registers, but must take at most ", most, " with warpgroups = ", c.warpgroups);
  if (c.p_terms > 0 && c.block_n % 32 != 0)
    bad_config("block_n", c.block_n, "must be a multiple of 32 with pv=fp8 and pv=fp8x2");
  if (chosen.promotion_interval > 0 && (c.promotion_interval == 0 || c.promotion_interval > longest_promotion))
    bad_config("promotion_interval", c.promotion_interval, "must be from 1 to ", longest_promotion,
               ", because the sequences can be longer");
  if (c.promotion_interval < 0 || c.promotion_interval % c.block_n != 0)
    bad_config("promotion_interval", c.promotion_interval, "must be a multiple of block_n");
  require_range("score_stages", c.score_stages, 1, 8);
  if (!c.boxes && c.score_stages != chosen.score_stages)
    bad_config("score_stages", c.score_stages, "has no effect with boxes = 0");
  if (c.boxes && !can_load_boxes(change.problem, c))
    bad_config("boxes", 1,
               "bias and mask must be contiguous along the keys, with other strides of multiples of 16 bytes; ",
               "packed_heads must be 1; block_n times the bytes of an element must be a multiple of 32. ",
               "boxes = 0 loads them without TMA");
  // The planner sets bias_row and mask_row only if it chooses boxes.
  if (c.boxes && (c.bias_row != change.problem.bias.access.one_row || c.mask_row != change.problem.mask.access.one_row))
    bad_config("boxes", 1, "the planner's choice for this problem must have boxes, too, because all queries have the ",
               "same row of the bias or of the mask");
  const int64_t group = change.problem.group();
  if (c.packed_heads != 1 && c.packed_heads != group)
    bad_config("packed_heads", c.packed_heads, "must be 1 or ", group, ", the query heads of a KV head");
  if (c.packed_heads < 1 || c.block_m() % c.packed_heads != 0)
    bad_config("packed_heads", c.packed_heads, "must divide ", c.block_m(), ", the rows of a tile");
  if (change.problem.seqlen_q >= Band::longest / c.packed_heads)
    bad_config("packed_heads", c.packed_heads, "packed_heads * seqlen_q must be below ", Band::longest);
  if (!c.causal_or_local && chosen.causal_or_local)
    bad_config("causal_or_local", 0, "this problem is causal or has a window");
  require_fits(
      change,
      {c.threads(), Sm90Layout(c).bytes, 1, {"warpgroups"}, {"warpgroups", "block_n", "q_stages", "kv_stages"}});
}

}  // namespace

extern const Family attention_sm90{.name = name,
                                   .accepts = accepts,
                                   .configure = configure,
                                   .config_type = config_table,
                                   .workspace_bytes = workspace_bytes,
                                   .text = text,
                                   .unit = unit,
                                   .launch_spec = sm90_launch_spec,
                                   .check_config = check_config,
                                   .counter_bytes = counter_bytes,
                                   .prefers = prefers,
                                   .priority = 90};

}  // namespace rapt
