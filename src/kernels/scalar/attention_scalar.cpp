// attention_scalar, host code: accepts every forward problem on GPUs of compute capability 8.0 or newer, except
// acc=f16, acc=tf32, paged KV and score modifications. The kernel is attention_scalar.cuh.
#include <algorithm>

#include "base/error.h"
#include "kernels/config_rules.h"
#include "kernels/family.h"
#include "kernels/rules.h"
#include "kernels/scalar/config.h"

namespace rapt {
namespace {

constexpr const char *name = "attention_scalar", *text = "scalar/attention_scalar.cuh";

constexpr ConfigField config_fields[] = {
    config_field<ScalarConfig, &ScalarConfig::q>("q"),
    config_field<ScalarConfig, &ScalarConfig::k>("k"),
    config_field<ScalarConfig, &ScalarConfig::v>("v"),
    config_field<ScalarConfig, &ScalarConfig::out>("out"),
    config_field<ScalarConfig, &ScalarConfig::head_dim>("head_dim"),
    config_field<ScalarConfig, &ScalarConfig::head_dim_v>("head_dim_v"),
    config_field<ScalarConfig, &ScalarConfig::block_m, 8, 16, 32, 64>("block_m", ConfigRole::tunable),
    config_field<ScalarConfig, &ScalarConfig::block_n>("block_n"),
    config_field<ScalarConfig, &ScalarConfig::warps_m, 2, 4, 8, 16>("warps_m", ConfigRole::tunable),
    config_field<ScalarConfig, &ScalarConfig::min_blocks, 1, 2, 3, 4>("min_blocks", ConfigRole::tunable),
    config_field<ScalarConfig, &ScalarConfig::paged>("paged"),
    config_field<ScalarConfig, &ScalarConfig::softcap>("softcap"),
    config_field<ScalarConfig, &ScalarConfig::bias>("bias"),
    config_field<ScalarConfig, &ScalarConfig::alibi>("alibi"),
    config_field<ScalarConfig, &ScalarConfig::mask>("mask"),
    config_field<ScalarConfig, &ScalarConfig::p_terms>("p_terms"),
    config_field<ScalarConfig, &ScalarConfig::key_mean>("key_mean"),
};
constexpr ConfigType config_table = config_type<ScalarConfig>("ScalarConfig", config_fields);

bool accepts(const Problem& p, const Device& device, std::string* why) {
  if (refused_for_gpu(name, device, why) || refused_by_all(name, p, why)) return false;
  if (p.acc == AccMode::f16) return refuse(name, why, "acc=f16: sums are in f32");
  if (p.acc == AccMode::tf32) return refuse(name, why, "acc=tf32: products are in f32");
  return true;
}

// Kernels are compiled for these head dims. Larger ones are computed in slices of 256.
int compiled_dim(int64_t head_dim) { return head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : 256; }

// The same tile for every problem, so that the result of a row does not depend on the rest of the call.
KernelConfig configure(const Problem& p, const Device&) {
  ScalarConfig a;
  a.q = p.q, a.k = p.k, a.v = p.v, a.out = p.out;
  a.head_dim = compiled_dim(p.head_dim), a.head_dim_v = compiled_dim(p.head_dim_v);
  a.block_m = 32, a.block_n = 32, a.warps_m = 8;
  a.softcap = p.softcap.has_value();
  a.bias = p.bias.dtype;
  a.alibi = p.alibi;
  a.mask = p.mask.present();
  a.paged = p.page_size > 0;
  a.p_terms = p.pv == PvMode::fp8 ? 1 : p.pv == PvMode::fp8x2 ? 2 : 0;
  a.key_mean = p.smooth_k;
  const bool fp8 = is_fp8(p.q) || is_fp8(p.k) || is_fp8(p.v);
  const bool plain = !fp8 && !a.softcap && !p.bias.present() && !a.alibi && !a.mask;
  a.min_blocks =
      plain && a.head_dim_v <= 128 ? 2 : 1;  // 2 CTAs leave a thread 128 registers, too few for the other cases
  return {config_table, a};
}

size_t workspace_bytes(const Problem&, const KernelConfig&) { return 0; }

KernelUnit unit(const KernelConfig& config) {
  const auto& a = config.as<ScalarConfig>();
  const auto floats = static_cast<size_t>(ScalarTile(a).floats);
  return {emit_unit(text, "attend_scalar", config_table, &a, "AttentionParams"), a.threads(), floats * sizeof(float)};
}

void check_config(const ConfigChange& change) {
  require_planned(name, change);
  const auto& c = change.changed.as<ScalarConfig>();
  require_range("warps_m", c.warps_m, 1, 32);
  require_range("block_m", c.block_m, 1, 1024);
  require_range("min_blocks", c.min_blocks, 1, 32);
  if (change.own_text) require_multiple("block_m", c.block_m, c.warps_m);  // each warp has the same number of rows
  require_fits(change, {c.threads(),
                        int64_t{ScalarTile(c).floats} * int64_t{sizeof(float)},
                        c.min_blocks,
                        {"warps_m"},
                        {"block_m", "block_n"}});
}

LaunchSpec launch_spec(const StepCall& call) {
  LaunchSpec spec(call.params);
  const index_t items = scalar_work_items(call.params, call.config.as<ScalarConfig>());
  spec.grid_x = static_cast<unsigned>(std::min(items, max_grid_x));  // the kernel is a grid-stride loop
  return spec;
}

}  // namespace

extern const Family attention_scalar{.name = name,
                                     .accepts = accepts,
                                     .configure = configure,
                                     .config_type = config_table,
                                     .workspace_bytes = workspace_bytes,
                                     .text = text,
                                     .unit = unit,
                                     .launch_spec = launch_spec,
                                     .check_config = check_config};

}  // namespace rapt
