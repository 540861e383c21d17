// attention_sm80, host code: attention on f32, 16-bit and FP8 tensors by tensor cores, for compute capability 8.0 and
// newer. Decides which problems the kernel accepts, chooses tiles, and describes the launch. The kernel is
// attention_sm80.cuh.
#include <algorithm>

#include "base/error.h"
#include "kernels/config_rules.h"
#include "kernels/family.h"
#include "kernels/rules.h"
#include "kernels/sm80/config.h"
#include "kernels/sm80/sm80.h"
#include "kernels/sm80/sm80_rules.h"
#include "kernels/sm80/tuned_gpu.h"

namespace rapt {
namespace {

constexpr const char *name = "attention_sm80", *source_file = "sm80/attention_sm80.cuh";

// The planner's configuration: the kernel's configuration, and l2_kv_bytes. This is how many bytes of K and V should be
// in L2 at the same time.
struct Sm80PlanConfig : Sm80Config {
  int64_t l2_kv_bytes = 0;
  bool operator==(const Sm80PlanConfig&) const = default;
};

constexpr ConfigField config_fields[] = {
    config_field<Sm80PlanConfig, &Sm80PlanConfig::q>("q"),
    config_field<Sm80PlanConfig, &Sm80PlanConfig::k>("k"),
    config_field<Sm80PlanConfig, &Sm80PlanConfig::v>("v"),
    config_field<Sm80PlanConfig, &Sm80PlanConfig::out>("out"),
    config_field<Sm80PlanConfig, &Sm80PlanConfig::head_dim>("head_dim"),
    config_field<Sm80PlanConfig, &Sm80PlanConfig::head_dim_v>("head_dim_v"),
    config_field<Sm80PlanConfig, &Sm80PlanConfig::block_m, 16, 32, 64, 128, 192, 256>("block_m", ConfigRole::tunable),
    config_field<Sm80PlanConfig, &Sm80PlanConfig::block_n, 16, 32, 48, 64, 80, 96, 128>("block_n", ConfigRole::tunable),
    config_field<Sm80PlanConfig, &Sm80PlanConfig::warps_m, 1, 2, 4, 8>("warps_m", ConfigRole::tunable),
    config_field<Sm80PlanConfig, &Sm80PlanConfig::warps_n, 1, 2, 4, 8>("warps_n", ConfigRole::tunable),
    config_field<Sm80PlanConfig, &Sm80PlanConfig::stages, 1, 2, 3, 4>("stages", ConfigRole::tunable),
    config_field<Sm80PlanConfig, &Sm80PlanConfig::q_in_registers, false, true>("q_in_registers", ConfigRole::tunable),
    config_field<Sm80PlanConfig, &Sm80PlanConfig::min_blocks, 1, 2, 3, 4>("min_blocks", ConfigRole::tunable),
    config_field<Sm80PlanConfig, &Sm80PlanConfig::scale_in_exp2>("scale_in_exp2", ConfigRole::tunable),
    config_field<Sm80PlanConfig, &Sm80PlanConfig::pairs>("pairs"),
    config_field<Sm80PlanConfig, &Sm80PlanConfig::octets>("octets", ConfigRole::tunable),
    config_field<Sm80PlanConfig, &Sm80PlanConfig::far_positions>("far_positions"),
    config_field<Sm80PlanConfig, &Sm80PlanConfig::softcap>("softcap"),
    config_field<Sm80PlanConfig, &Sm80PlanConfig::bias>("bias"),
    config_field<Sm80PlanConfig, &Sm80PlanConfig::alibi>("alibi"),
    config_field<Sm80PlanConfig, &Sm80PlanConfig::mask>("mask"),
    config_field<Sm80PlanConfig, &Sm80PlanConfig::paged>("paged"),
    config_field<Sm80PlanConfig, &Sm80PlanConfig::causal_or_local>("causal_or_local", ConfigRole::tunable),
    config_field<Sm80PlanConfig, &Sm80PlanConfig::programmatic, false, true>("programmatic", ConfigRole::tunable),
    config_field<Sm80PlanConfig, &Sm80PlanConfig::f16_accumulate>("f16_accumulate"),
    config_field<Sm80PlanConfig, &Sm80PlanConfig::single_tf32>("single_tf32"),
    config_field<Sm80PlanConfig, &Sm80PlanConfig::fp8_qk>("fp8_qk", ConfigRole::tunable),
    config_field<Sm80PlanConfig, &Sm80PlanConfig::fp8_pv>("fp8_pv", ConfigRole::tunable),
    config_field<Sm80PlanConfig, &Sm80PlanConfig::p_terms>("p_terms"),
    config_field<Sm80PlanConfig, &Sm80PlanConfig::q_row_descales>("q_row_descales"),
    config_field<Sm80PlanConfig, &Sm80PlanConfig::k_descale_block>("k_descale_block"),
    config_field<Sm80PlanConfig, &Sm80PlanConfig::v_descale_block>("v_descale_block"),
    config_field<Sm80PlanConfig, &Sm80PlanConfig::v_channel_descales>("v_channel_descales"),
    config_field<Sm80PlanConfig, &Sm80PlanConfig::key_mean>("key_mean"),
    config_field<Sm80PlanConfig, &Sm80PlanConfig::promotion_interval>("promotion_interval", ConfigRole::tunable),
    config_field<Sm80PlanConfig, &Sm80PlanConfig::k_piece>("k_piece", ConfigRole::tunable),
    config_field<Sm80PlanConfig, &Sm80PlanConfig::v_piece>("v_piece", ConfigRole::tunable),
    config_field<Sm80PlanConfig, &Sm80PlanConfig::v_slice>("v_slice", ConfigRole::tunable),
};
constexpr ConfigType config_table = config_type<Sm80PlanConfig>("Sm80Config", config_fields);

// *why receives the first rule that the problem breaks. If why is null, nothing is formatted.
bool accepts(const Problem& p, const Device& device, std::string* why) {
  if (refused_for_gpu(name, device, why) || refused_by_all(name, p, why)) return false;
  if (!accepts_formats(name, p, why) || !accepts_dims(name, p, device, why) || !accepts_layouts(name, p, why))
    return false;
  // Tiles with fewer rows are used only if there are few rows, or for wide head dims, which have up to 4 slices.
  const int64_t rows_of_cta = has_wide_dims(p) ? 4 : 32;
  if (p.batch * p.heads_q > max_grid_x || p.batch * p.heads_q * ceil_div(p.seqlen_q, rows_of_cta) > max_grid_x)
    return refuse(name, why, "batch * heads_q * ceil(seqlen_q / ", rows_of_cta, "): must be at most ", max_grid_x);
  return true;
}

// Score modifications other than the scale need registers.
bool changes_scores(const Problem& p) {
  return p.softcap || p.bias.present() || p.alibi || p.mask.present() || !can_scale_in_exp2(p, false);
}

bool has_small_smem(const Device& device) { return device.smem_per_block < 128 << 10; }

// With `invariant`, tiles must not depend on lengths, batch or heads.
Sm80Rows rows_of(const Problem& p, const Device& device, bool causal_or_local, int dim) {
  const int64_t heads = p.batch * p.heads_q;
  if (p.invariant) return Sm80Rows::many;
  if (has_wide_dims(p)) {
    if (16 * heads * ceil_div(p.seqlen_q, 64) <= device.sm_count) return Sm80Rows::few;
    const int64_t tiles = heads * ceil_div(p.seqlen_q, has_small_smem(device) ? 32 : 64);
    return 2 * tiles <= device.sm_count ? Sm80Rows::balanced : Sm80Rows::many;
  }
  if (4 * heads * ceil_div(p.seqlen_q, 64) <= 5 * device.sm_count) return Sm80Rows::few;
  if (causal_or_local && dim <= 128 && heads * ceil_div(p.seqlen_q, 128) < 5 * device.sm_count)
    return Sm80Rows::balanced;
  return Sm80Rows::many;
}

// With `invariant`, tiles must not depend on lengths, so elements of bias and mask count as loaded one at a time.
bool has_heavy_scores(const Problem& p) {
  const bool loads = p.bias.present() || p.mask.present(), singly = p.invariant || !common_score_access(p).pairs;
  const int count = p.softcap.has_value() + p.bias.present() + p.alibi + p.mask.present();
  return count > 1 || p.bias.dtype == DType::f32 || (loads && singly) || (p.softcap && !has_moderate_softcap(p)) ||
         (p.alibi && (p.invariant || has_far_positions(p))) || p.acc == AccMode::f16;
}

Sm80Traits traits_of(const Problem& p, const Device& device) {
  Sm80Traits t{};
  t.dim = static_cast<int>(std::max(p.head_dim, p.head_dim_v));
  t.extra_registers = changes_scores(p) || p.acc == AccMode::f16;
  t.heavy_scores = has_heavy_scores(p);
  t.tf32 = has_tf32(p);
  t.causal_or_local = p.position_mask.present();
  t.hopper = device.sm == 90;
  t.fp8 = has_fp8(p);
  t.fine_grained_scales = rows_sharing(p.q_scales) + rows_sharing(p.k_scales) + rows_sharing(p.v_scales) > 0 ||
                          p.v_scales == ScaleKind::channel;
  t.e4m3_kv = p.q != DType::bf16 && p.q != DType::e5m2 && p.k == DType::e4m3 && p.v == DType::e4m3;
  t.small_smem = has_small_smem(device);
  t.short_q = p.seqlen_q <= 16 && !p.invariant;
  t.few_keys = p.seqlen_k <= 512 && !t.fine_grained_scales;
  t.rows = rows_of(p, device, t.causal_or_local, t.dim);
  return t;
}

// Shrinks the tiles until they fit into the GPU's shared memory. Reduces `stages` first, then block_n, then block_m,
// then warps_n.
void fit_shared_memory(Sm80Config& a, int bytes) {
  const int min_block_n = is_tensor_core_fp8(a.k) || is_tensor_core_fp8(a.v) ? 32 : 16;
  while (smem_bytes(a) > bytes && a.stages > 1) --a.stages;
  while (smem_bytes(a) > bytes && a.block_n % (2 * min_block_n) == 0) a.block_n /= 2;
  while (smem_bytes(a) > bytes && a.warps_m > 1) a.block_m /= 2, a.warps_m /= 2;
  while (smem_bytes(a) > bytes && a.warps_n > 1) a.warps_n /= 2;
}

KernelConfig configure(const Problem& p, const Device& device) {
  const Sm80Traits traits = traits_of(p, device);
  Sm80PlanConfig a{
      std::ranges::find_if(sm80_tuned_rows, [&](const Sm80TunedRow& row) { return row.applies(traits); })->tiles};
  configure_variant(p, device, a);
  const bool paged = a.paged;
  a.paged = paged || p.invariant;  // with `invariant`, pages must not change the tiles
  // The offsets of paged rows need registers. With blocks of 64 keys, kernels for head_dim 128 spilled.
  if (a.paged && !a.causal_or_local && a.block_m == 32 * a.warps_m && a.block_n == 64) a.block_n = 48;
  a.programmatic = (has_3d_grid(a) || (a.wide() && traits.rows == Sm80Rows::few)) && arch_number(device.arch) >= 90;
  a.wide() ? choose_pieces(a, device.smem_per_block) : fit_shared_memory(a, device.smem_per_block);
  a.paged = paged;
  a.octets = can_load_octets(p) && !a.wide() && a.block_n % 32 == 0;
  a.l2_kv_bytes = device.l2_bytes / 2;
  return {config_table, a};
}

size_t workspace_bytes(const Problem&, const KernelConfig&) { return 0; }

KernelUnit unit(const KernelConfig& config) {
  const auto& a = config.as<Sm80PlanConfig>();
  return {emit_unit(source_file, "attention_sm80", config_table, &a, "Sm80Params"), a.threads(),
          static_cast<size_t>(smem_bytes(a))};
}

void check_config(const ConfigChange& change) {
  require_planned(name, change);
  const auto &c = change.changed.as<Sm80PlanConfig>(), &chosen = change.chosen.as<Sm80PlanConfig>();
  require_range("block_m", c.block_m, 1, 1024);
  require_range("block_n", c.block_n, 1, 1024);
  require_range("warps_m", c.warps_m, 1, 32);
  require_range("warps_n", c.warps_n, 1, 32);
  require_range("stages", c.stages, 1, 16);
  require_range("min_blocks", c.min_blocks, 1, 32);
  require_range("promotion_interval", c.promotion_interval, 0, 1 << 20);
  require_range("k_piece", c.k_piece, 0, 1024);
  if (c.wide() != chosen.wide())
    bad_config("k_piece", c.k_piece, chosen.wide() ? "must be above 0 for this problem" : "must be 0 for this problem");
  for (const auto& [field, value] : {std::pair{"v_piece", c.v_piece}, {"v_slice", c.v_slice}}) {
    if (c.wide())
      require_range(field, value, 1, 1024);
    else if (value != 0)
      bad_config(field, value, "must be 0 for this problem");
  }
  if (c.scale_in_exp2 && !chosen.scale_in_exp2)
    bad_config("scale_in_exp2", 1, "this problem changes scores by more than the scale");
  if (c.octets && (c.wide() || !can_load_octets(change.problem)))
    bad_config("octets", 1, "must be 0 for this problem, because bias or mask cannot be read in groups of eight keys");
  if (!c.causal_or_local && chosen.causal_or_local)
    bad_config("causal_or_local", 0, "this problem is causal or has a window");
  const int arch = arch_number(change.device.arch);
  if (c.programmatic && arch < 90)
    bad_config("programmatic", 1, "must be 0 on ", change.device.arch, ", because it needs sm_90 or newer");
  if (c.fp8_qk && !(is_tensor_core_fp8(c.q) && is_tensor_core_fp8(c.k)))
    bad_config("fp8_qk", 1, "q and k must be e4m3 or e5m2");
  if (c.fp8_pv && !(is_tensor_core_fp8(c.v) && c.p_terms > 0)) bad_config("fp8_pv", 1, "needs pv=fp8 or pv=fp8x2");
  if ((c.fp8_qk || c.fp8_pv) && arch < 89)
    bad_config(c.fp8_qk ? "fp8_qk" : "fp8_pv", 1, "must be 0 on ", change.device.arch,
               ", which has no FP8 instructions");
  if (!has_3d_grid(c) && change.problem.batch * change.problem.heads_q *
                                 ceil_div(change.problem.seqlen_q, std::max(c.block_m, 1)) * slices_of(c) >
                             max_grid_x)
    bad_config("block_m", c.block_m, "batch * heads_q * ceil(seqlen_q / block_m) must be at most ", max_grid_x);
  if (has_3d_grid(c) && std::max(change.problem.batch, change.problem.heads_q) > max_grid_yz)
    bad_config("warps_n", c.warps_n, "must be 1 if batch or heads_q exceeds ", max_grid_yz);
  if (change.own_text && c.wide()) check_pieces(c);
  if (change.own_text) check_mma_tiles(c);
  require_fits(
      change,
      {c.threads(), smem_bytes(c), c.min_blocks, {"warps_m", "warps_n"}, {"block_m", "block_n", "warps_n", "stages"}});
}

// If the work per row differs (causal, window), heads are grouped into sections. K and V of a section fit into
// l2_kv_bytes, which is half of the L2. A section has at least one KV head, even if its K and V do not fit.
TileScheduler tile_scheduler(const Problem& p, const Sm80PlanConfig& config) {
  const auto u = [](int64_t n) { return static_cast<unsigned>(n); };
  TileScheduler scheduler;
  scheduler.group = FastDivmod::by(u(p.group()));
  if (has_3d_grid(config)) return scheduler;  // the 3D grid needs no scheduler
  int64_t heads_per_section = 1;
  if (config.causal_or_local) {
    const int64_t bytes =
        p.seqlen_k * (bytes_of(p.k) * p.head_dim + bytes_of(p.v) * p.head_dim_v);  // K and V of one kv head
    heads_per_section =
        std::clamp<int64_t>(config.l2_kv_bytes / std::max<int64_t>(bytes, 1), 1, p.batch * p.heads_k) * p.group();
  }
  return TileScheduler::of(u(ceil_div(p.seqlen_q, config.block_m)), u(p.batch), u(p.heads_q), u(p.group()),
                           u(heads_per_section));
}

LaunchSpec launch_spec(const StepCall& call) {
  const Problem& p = call.problem;
  const auto& c = call.config.as<Sm80PlanConfig>();
  const int64_t tiles = ceil_div(p.seqlen_q, c.block_m), heads = p.batch * p.heads_q;
  const bool any = tiles * heads > 0;  // without tiles the scheduler would divide by zero
  LaunchSpec spec(Sm80Params{call.params, any ? tile_scheduler(p, c) : TileScheduler()});
  if (!any) return spec;
  spec.grid_x = static_cast<unsigned>(has_3d_grid(c) ? tiles : tiles * heads * slices_of(c));
  if (has_3d_grid(c)) spec.grid_y = static_cast<unsigned>(p.heads_q), spec.grid_z = static_cast<unsigned>(p.batch);
  spec.programmatic = c.programmatic;
  return spec;
}

}  // namespace

extern const Family attention_sm80{.name = name,
                                   .accepts = accepts,
                                   .configure = configure,
                                   .config_type = config_table,
                                   .workspace_bytes = workspace_bytes,
                                   .text = source_file,
                                   .unit = unit,
                                   .launch_spec = launch_spec,
                                   .check_config = check_config,
                                   .priority = 80};

}  // namespace rapt
