// attention_decode, host code: few query rows against many keys, on 16-bit and FP8 tensors, for compute capability 8.0
// and newer. Decides which problems the kernel accepts, chooses tiles, and describes the launch. The kernel is
// attention_decode.cuh.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "kernels/config_rules.h"
#include "kernels/family.h"
#include "kernels/rules.h"
#include "kernels/sm80/decode.h"
#include "kernels/sm80/sm80_rules.h"
#include "kernels/sm90/choice_gpu.h"

namespace rapt {
namespace {

constexpr const char *name = "attention_decode", *source_file = "sm80/attention_decode.cuh";

// The most rows of a sequence: query rows times the query heads of a KV head.
constexpr int64_t most_rows = 256;

// With at most 32 rows, the time is that of loading the keys. With more, a multiprocessor needs key_us for each key of
// a tile of 32 rows (measured on an H200). The other two times are estimates.
constexpr double key_us = 0.012, launch_us = 2, launch_and_merge_us = 5;
// With 128 keys attention_sm80 was faster if its grid fits on the GPU at once, with 512 attention_decode. The limit
// lies between, not measured.
constexpr double few_keys = 384;
// More than 32 rows were measured only with many keys.
constexpr double many_keys = 2048;

// The planner's configuration: the kernel's configuration, and the number of multiprocessors.
struct DecodePlanConfig : Sm80Config {
  int multiprocessors = 1;
  // The number of CTAs that run at the same time. Keys are divided among so many CTAs.
  int ctas() const { return multiprocessors * min_blocks; }
  bool operator==(const DecodePlanConfig&) const = default;
};

// `invariant`: the keys of a part. More parts let more CTAs share a sequence; each part costs a start of the pipeline
// and a merge. Other numbers were not measured (docs/lab-notebook.md).
constexpr int invariant_part_keys = 2048;
// `invariant`: if the partial states of all parts of all tiles need more bytes, one CTA computes all parts of a tile.
constexpr int64_t most_state_bytes = int64_t{128} << 20;

constexpr ConfigField config_fields[] = {
    config_field<DecodePlanConfig, &DecodePlanConfig::q>("q"),
    config_field<DecodePlanConfig, &DecodePlanConfig::k>("k"),
    config_field<DecodePlanConfig, &DecodePlanConfig::v>("v"),
    config_field<DecodePlanConfig, &DecodePlanConfig::out>("out"),
    config_field<DecodePlanConfig, &DecodePlanConfig::head_dim>("head_dim"),
    config_field<DecodePlanConfig, &DecodePlanConfig::head_dim_v>("head_dim_v"),
    config_field<DecodePlanConfig, &DecodePlanConfig::packs_heads>("packs_heads"),
    config_field<DecodePlanConfig, &DecodePlanConfig::part_keys>("part_keys", ConfigRole::tunable),
    config_field<DecodePlanConfig, &DecodePlanConfig::block_m, 16, 32, 64>("block_m", ConfigRole::tunable),
    config_field<DecodePlanConfig, &DecodePlanConfig::block_n, 16, 32, 64>("block_n", ConfigRole::tunable),
    config_field<DecodePlanConfig, &DecodePlanConfig::warps_m, 1, 2, 4>("warps_m", ConfigRole::tunable),
    config_field<DecodePlanConfig, &DecodePlanConfig::warps_n, 2, 4, 8>("warps_n", ConfigRole::tunable),
    config_field<DecodePlanConfig, &DecodePlanConfig::stages, 2, 3, 4>("stages", ConfigRole::tunable),
    config_field<DecodePlanConfig, &DecodePlanConfig::q_in_registers, false, true>("q_in_registers",
                                                                                   ConfigRole::tunable),
    config_field<DecodePlanConfig, &DecodePlanConfig::min_blocks, 1, 2, 3>("min_blocks", ConfigRole::tunable),
    config_field<DecodePlanConfig, &DecodePlanConfig::scale_in_exp2>("scale_in_exp2"),
    config_field<DecodePlanConfig, &DecodePlanConfig::pairs>("pairs"),
    config_field<DecodePlanConfig, &DecodePlanConfig::far_positions>("far_positions"),
    config_field<DecodePlanConfig, &DecodePlanConfig::softcap>("softcap"),
    config_field<DecodePlanConfig, &DecodePlanConfig::bias>("bias"),
    config_field<DecodePlanConfig, &DecodePlanConfig::alibi>("alibi"),
    config_field<DecodePlanConfig, &DecodePlanConfig::mask>("mask"),
    config_field<DecodePlanConfig, &DecodePlanConfig::paged>("paged"),
    config_field<DecodePlanConfig, &DecodePlanConfig::causal_or_local>("causal_or_local"),
    config_field<DecodePlanConfig, &DecodePlanConfig::programmatic, false, true>("programmatic", ConfigRole::tunable),
    config_field<DecodePlanConfig, &DecodePlanConfig::fp8_qk>("fp8_qk"),
    config_field<DecodePlanConfig, &DecodePlanConfig::fp8_pv>("fp8_pv"),
    config_field<DecodePlanConfig, &DecodePlanConfig::p_terms>("p_terms"),
    config_field<DecodePlanConfig, &DecodePlanConfig::q_row_descales>("q_row_descales"),
    config_field<DecodePlanConfig, &DecodePlanConfig::k_descale_block>("k_descale_block"),
    config_field<DecodePlanConfig, &DecodePlanConfig::v_descale_block>("v_descale_block"),
    config_field<DecodePlanConfig, &DecodePlanConfig::v_channel_descales>("v_channel_descales"),
    config_field<DecodePlanConfig, &DecodePlanConfig::key_mean>("key_mean"),
    config_field<DecodePlanConfig, &DecodePlanConfig::promotion_interval>("promotion_interval"),
    config_field<DecodePlanConfig, &DecodePlanConfig::k_piece>("k_piece", ConfigRole::tunable),
    config_field<DecodePlanConfig, &DecodePlanConfig::v_piece>("v_piece", ConfigRole::tunable),
    config_field<DecodePlanConfig, &DecodePlanConfig::v_slice>("v_slice"),
    config_field<DecodePlanConfig, &DecodePlanConfig::v_in_k>("v_in_k"),
};
constexpr ConfigType config_table = config_type<DecodePlanConfig>("Sm80Config", config_fields);

// With `invariant`, this kernel computes all lengths, because another kernel would give other bits. The rules keep
// numbers of rows and tiles below 2^31.
bool accepts_invariant(const Problem& p, std::string* why) {
  const int64_t rows = p.seqlen_q * p.group(), tiles = p.batch * p.heads_k * ceil_div(rows, 16);
  constexpr int64_t most = INT32_MAX - 64;  // a tile can have up to 63 rows that do not exist
  if (rows > most) return refuse(name, why, "seqlen_q * heads_q / heads_k = ", rows, ": must be at most ", most);
  if (tiles > INT32_MAX / 2)
    return refuse(name, why, "tiles of 16 rows: at most ", INT32_MAX / 2, " are possible, and the call has ", tiles);
  return true;
}

bool accepts(const Problem& p, const Device& device, std::string* why) {
  if (refused_for_gpu(name, device, why) || refused_by_all(name, p, why)) return false;
  if (has_tf32(p))
    return refuse(name, why, "q=", name_of(p.q), " k=", name_of(p.k), " v=", name_of(p.v),
                  ": products of f32 tensors, and of f16 beside bf16, are not supported");
  if (p.acc != AccMode::f32) return refuse(name, why, "acc: sums are in f32");
  if (has_wide_dims(p) && p.invariant)
    return refuse(name, why, "head_dim ", p.head_dim, ":", p.head_dim_v, " with invariant: must be at most ",
                  largest_dim);
  if (!accepts_formats(name, p, why) || !accepts_dims(name, p, device, why) || !accepts_layouts(name, p, why))
    return false;
  if (p.invariant) return accepts_invariant(p, why);
  if (p.splits == 1) return refuse(name, why, "splits=1: the keys are divided among CTAs");
  if (p.seqlen_q * p.group() > most_rows)
    return refuse(name, why, "seqlen_q * heads_q / heads_k = ", p.seqlen_q * p.group(), ": must be at most ",
                  most_rows);
  const int64_t blocks = p.batch * p.heads_k * ceil_div(p.seqlen_q * p.group(), 16) * (ceil_div(p.seqlen_k, 32) + 1);
  if (blocks > INT32_MAX)
    return refuse(name, why, "batch * heads_k * blocks of keys: must be below 2^31, and is ", blocks);
  return true;
}

// Returns the smallest block_n.
int least_block_n(const Sm80Config& a) { return is_tensor_core_fp8(a.k) || is_tensor_core_fp8(a.v) ? 32 : 16; }

// With `invariant`, tiles depend only on head dims, dtypes, kinds of descales and the GPU. In particular, they do not
// depend on lengths, masks and pages. Decoding uses few of the 64 rows. A warp has 16 rows, and its registers limit
// block_n. Other choices were not measured.
void choose_invariant_tiles(const Problem& p, const Device& device, DecodePlanConfig& a) {
  const auto dim = std::max(p.head_dim, p.head_dim_v);
  a.part_keys = invariant_part_keys;
  a.warps_n = 2, a.warps_m = 4;
  a.block_n = dim <= 64 || (dim <= 128 && a.k_descale_block != 1 && a.v_descale_block != 1) ? 64 : 32;
  a.q_in_registers = p.head_dim <= 128;
  a.min_blocks = 1;
  const auto fits = [&](int stages) {
    a.stages = stages, a.block_m = 16 * a.warps_m;
    Sm80Config with_pages = a;
    with_pages.paged = true;
    return smem_bytes(with_pages) <= device.smem_per_block;
  };
  while (a.block_n > least_block_n(a) && !fits(2)) a.block_n /= 2;
  while (a.warps_m > 1 && !fits(1)) a.warps_m /= 2;
  fits(3) || fits(2) || fits(1);
}

// Head dims above 256. If V is a part of K and whole blocks of K fit, the keys are loaded once. Otherwise K and V
// arrive in pieces. More rows share the work for the keys, but need more registers: a warp has 16 rows.
void choose_wide_tiles(const Problem& p, const Device& device, DecodePlanConfig& a) {
  const int64_t rows = p.seqlen_q * p.group();
  const struct {
    int64_t least_rows;
    int warps_m, warps_n, stages;
  } whole[] = {{33, 4, 2, 3}, {33, 4, 2, 2}, {17, 2, 4, 2}, {0, 1, 4, 2}, {0, 2, 2, 2}};
  a.block_n = 16, a.v_slice = largest_wide_dim_v;
  for (const auto& tiles : whole) {
    if (!p.v_in_k || rows < tiles.least_rows) continue;
    a.warps_m = tiles.warps_m, a.warps_n = tiles.warps_n, a.stages = tiles.stages, a.block_m = 16 * a.warps_m;
    a.k_piece = round_up(a.head_dim, 16), a.v_piece = 16, a.v_in_k = true;
    if (a.head_dim_v % (16 * a.warps_n) == 0 && smem_bytes(a) <= device.smem_per_block) return;
  }
  a.v_in_k = false, a.stages = 4;
  a.block_m = rows <= 16 ? 16 : 32, a.warps_m = a.block_m / 16, a.warps_n = 8 / a.warps_m, a.k_piece = 64;
  choose_pieces(a, device.smem_per_block);
}

// A multiprocessor has one CTA of eight warps, and buffers for three blocks of keys. With lengths in device memory it
// has two CTAs of four warps: if sequences are short, a CTA computes many tiles, and one CTA loads keys while the other
// ends its tile and begins the next one. If all lengths are equal, two CTAs were up to 2% slower on an H200, because
// they need more parts of each tile. If lengths were very different, they were 11% faster (docs/lab-notebook.md).
void choose_tiles(const Problem& p, const Device& device, DecodePlanConfig& a) {
  if (p.invariant) return choose_invariant_tiles(p, device, a);
  if (has_wide_dims(p)) return choose_wide_tiles(p, device, a);
  const int64_t rows = p.seqlen_q * p.group();
  a.block_m = rows <= 16 ? 16 : 32;
  a.warps_m = a.block_m / 16, a.warps_n = 8 / a.warps_m;
  a.q_in_registers = p.head_dim <= 128;
  const bool lists = p.seqused || p.varlen, small = a.block_m == 16 && std::max(p.head_dim, p.head_dim_v) <= 128,
             two_ctas = lists && small && device.smem_per_block >= 128 << 10;
  a.min_blocks = two_ctas ? 2 : 1, a.warps_n /= a.min_blocks;
  const int least = least_block_n(a), bytes = device.smem_per_block / a.min_blocks - (two_ctas ? 1024 : 0);
  a.block_n = a.block_m == 16 ? 64 : std::max(p.head_dim, p.head_dim_v) <= 128 ? 32 : least;  // by the registers
  const auto fits = [&](int stages) {
    a.stages = stages;
    return smem_bytes(a) <= bytes;
  };
  while (a.block_n > least && !fits(3)) a.block_n /= 2;
  while (a.warps_n > 2 && !fits(2)) a.warps_n /= 2;
  fits(3) || fits(2) || fits(1);
}

// Returns whether attention_decode is faster than the families that would compute the problem otherwise. The limits
// were found on an H200 (docs/lab-notebook.md). Other GPUs were not measured.
bool prefers(const Problem& p, const Device& device, std::string* why) {
  if (p.invariant) return true;  // lengths must not change the kernel
  const TypicalLengths lengths = TypicalLengths::of(p);
  const auto no = [&](const char* faster, const auto&... parts) {
    return refuse(name, why, parts..., ": ", faster, " is faster");
  };
  if (lengths.k <= few_keys && p.batch * p.heads_q <= device.sm_count)
    return no("attention_sm80", std::llround(lengths.k), " keys and ", p.batch * p.heads_q, " query heads");
  const double rows = lengths.q * static_cast<double>(p.group());
  if (rows <= 32 || p.v_in_k) return true;
  if (has_wide_dims(p))
    return no("attention_sm80", std::llround(rows), " rows for each KV head, which were not measured");
  if (lengths.k < many_keys)
    return no("another family", std::llround(rows), " rows for each KV head and ", std::llround(lengths.k), " keys");
  const double multiprocessors = device.sm_count,
               tiles = lengths.sequences * static_cast<double>(p.heads_k) * std::ceil(rows / 32),
               us = launch_and_merge_us + tiles * lengths.k / multiprocessors * key_us;
  if (attention_sm90.accepts(p, device, nullptr)) {
    if (us <= std::min(choose_sm90_tiles(p, device).us, estimated_sm80_us(p, device))) return true;
    return no("another family", std::llround(rows), " rows for each KV head");
  }
  const double sm80_tiles = lengths.sequences * static_cast<double>(p.heads_q) * std::ceil(lengths.q / 32),
               sm80_us = launch_us + std::ceil(sm80_tiles / multiprocessors) * lengths.k * key_us;
  return us <= 0.7 * sm80_us || no("attention_sm80", std::llround(rows), " rows for each KV head");
}

KernelConfig configure(const Problem& p, const Device& device) {
  DecodePlanConfig a;
  configure_variant(p, device, a);
  a.packs_heads = true;
  a.q_row_descales = a.q_row_descales || p.q_scales == ScaleKind::head;
  choose_tiles(p, device, a);
  a.programmatic = arch_number(device.arch) >= 90;
  a.multiprocessors = device.sm_count;
  return {config_table, a};
}

int64_t row_tiles(const Problem& p, const DecodePlanConfig& c) { return ceil_div(p.seqlen_q * p.group(), c.block_m); }

int64_t all_tiles(const Problem& p, const DecodePlanConfig& c) { return p.batch * p.heads_k * row_tiles(p, c); }

// Returns the rows of a slot. If a sequence has few rows, the slots of an `invariant` call have only these.
int64_t slot_rows(const Problem& p, const DecodePlanConfig& c) {
  return c.part_keys == 0 ? c.block_m : std::clamp<int64_t>(p.seqlen_q * p.group(), 1, c.block_m);
}
int64_t row_bytes(const DecodePlanConfig& c) { return int64_t{sizeof(float)} * decode_row_floats(c); }
int64_t slot_bytes(const Problem& p, const DecodePlanConfig& c) { return slot_rows(p, c) * row_bytes(c); }

// Returns an upper bound of the parts of a tile with `invariant`.
int64_t most_parts(const Problem& p, const DecodePlanConfig& c) {
  const int64_t parts = std::max<int64_t>(1, ceil_div(p.seqlen_k, c.part_keys));
  const PositionMask& mask = p.position_mask;
  const int64_t right = mask.causal != Causal::none ? 0 : mask.window_right;
  if (mask.window_left < 0 || right < 0 || mask.window_left + right > p.seqlen_k) return parts;
  // The first and the last key that a tile sees are at most so many keys apart. They can lie anywhere in their parts.
  const int64_t keys = c.block_m + mask.window_left + right;
  return std::min(parts, ceil_div(keys, c.part_keys) + 1);
}
// Returns whether each part of a tile has its own CTA (FixedParts).
bool divides_parts(const Problem& p, const DecodePlanConfig& c) {
  return p.splits != 1 && all_tiles(p, c) * slot_bytes(p, c) <= most_state_bytes / most_parts(p, c);
}

// A shorter call of the class can divide the parts although this call does not. It then needs at most most_state_bytes.
size_t workspace_bytes(const Problem& p, const KernelConfig& config) {
  const auto& c = config.as<DecodePlanConfig>();
  const int64_t of_ctas = 2 * c.ctas() * slot_bytes(p, c);
  if (c.part_keys == 0) return static_cast<size_t>(of_ctas);
  const int64_t of_parts =
      divides_parts(p, c) ? all_tiles(p, c) * most_parts(p, c) * slot_bytes(p, c) : most_state_bytes;
  return static_cast<size_t>(std::max(of_ctas, of_parts));
}
// Counters: arrivals at each tile whose parts are divided; with `invariant` also the number of the next unit.
size_t counter_bytes(const Problem& p, const KernelConfig& config) {
  const auto& c = config.as<DecodePlanConfig>();
  const int64_t tiles = all_tiles(p, c);
  const int64_t counters = c.part_keys == 0 ? tiles : 1 + std::min(tiles, most_state_bytes / row_bytes(c));
  return static_cast<size_t>(counters) * sizeof(unsigned);
}

KernelUnit unit(const KernelConfig& config) {
  const auto& a = config.as<DecodePlanConfig>();
  return {emit_unit(source_file, "attention_decode", config_table, &a, "DecodeParams"), a.threads(),
          static_cast<size_t>(smem_bytes(a))};
}

void check_config(const ConfigChange& change) {
  require_planned(name, change);
  const auto& c = change.changed.as<DecodePlanConfig>();
  require_range("block_m", c.block_m, 16, 256);
  require_range("block_n", c.block_n, 16, 256);
  require_range("warps_m", c.warps_m, 1, 16);
  require_range("warps_n", c.warps_n, 2, 16);
  require_range("stages", c.stages, 1, 16);
  require_range("min_blocks", c.min_blocks, 1, 16);
  if (c.part_keys != 0 && !change.problem.invariant)
    bad_config("part_keys", c.part_keys, "must be 0 without invariant");
  if (change.problem.invariant) {
    require_range("part_keys", c.part_keys, 1, 1 << 24);
    require_multiple("part_keys", c.part_keys, c.cta_block_n());
  }
  if (c.programmatic && arch_number(change.device.arch) < 90)
    bad_config("programmatic", 1, "must be 0 on ", change.device.arch, ", because it needs sm_90 or newer");
  if (change.own_text && c.wide()) check_pieces(c);
  if (change.own_text) check_mma_tiles(c);
  require_fits(
      change,
      {c.threads(), smem_bytes(c), c.min_blocks, {"warps_m", "warps_n"}, {"block_m", "block_n", "warps_n", "stages"}});
}

// Sets the division of the work of an `invariant` call. Returns the number of CTAs.
unsigned divide_at_fixed_places(DecodeParams& params, const Problem& p, const DecodePlanConfig& c) {
  params.folds = !divides_parts(p, c);
  params.parts = FastDivmod::by(params.folds ? 1u : static_cast<unsigned>(most_parts(p, c)));
  params.units = static_cast<unsigned>(all_tiles(p, c)) * params.parts.value;
  params.next_unit = params.arrivals++;
  params.slot_rows = static_cast<int>(slot_rows(p, c));
  return std::min(params.units, static_cast<unsigned>(c.ctas()));
}

// Divides the work of other calls. Returns the number of CTAs.
unsigned divide_evenly(DecodeParams& params, const Problem& p, const DecodePlanConfig& c) {
  const int64_t tiles = all_tiles(p, c), blocks = ceil_div(p.seqlen_k, c.cta_block_n());
  // A tile whose range of the line has n blocks, in parts of at least m blocks, has at most ceil(n / m) + 1 parts.
  if (p.splits > 1) params.least_blocks = static_cast<int>(std::max<int64_t>(1, ceil_div(blocks, p.splits - 1)));
  if (params.sm80.attention.has_lists())
    return static_cast<unsigned>(std::min<int64_t>(tiles * std::max<int64_t>(blocks, 1), c.ctas()));
  return divide_equal_tiles(params, c, static_cast<unsigned>(tiles), static_cast<unsigned>(c.ctas()),
                            p.splits > 0 ? static_cast<unsigned>(std::min<int64_t>(p.splits, INT32_MAX)) : UINT32_MAX);
}

LaunchSpec launch_spec(const StepCall& call) {
  const Problem& p = call.problem;
  const auto& c = call.config.as<DecodePlanConfig>();
  DecodeParams params;
  params.sm80.attention = call.params;
  params.slots = static_cast<float*>(call.workspace.scratch);
  params.arrivals = static_cast<unsigned*>(call.workspace.counters);
  params.row_tiles = FastDivmod::by(static_cast<unsigned>(std::max<int64_t>(1, row_tiles(p, c))));
  params.heads_k = FastDivmod::by(static_cast<unsigned>(std::max<int64_t>(1, p.heads_k)));
  const unsigned ctas = c.part_keys > 0 ? divide_at_fixed_places(params, p, c) : divide_evenly(params, p, c);
  LaunchSpec spec(params);
  spec.grid_x = ctas;
  spec.programmatic = c.programmatic;
  return spec;
}

}  // namespace

extern const Family attention_decode{.name = name,
                                     .accepts = accepts,
                                     .configure = configure,
                                     .config_type = config_table,
                                     .workspace_bytes = workspace_bytes,
                                     .text = source_file,
                                     .unit = unit,
                                     .launch_spec = launch_spec,
                                     .check_config = check_config,
                                     .counter_bytes = counter_bytes,
                                     .prefers = prefers,
                                     .priority = 95};

}  // namespace rapt
