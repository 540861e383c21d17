// attention_sm80, host half: 16-bit attention on tensor cores, for GPUs of compute capability 8.0 and more.
// What runs is attention_sm80.cuh. Says when it applies, chooses tiles, launches.
#include <algorithm>
#include <cmath>

#include "error.h"
#include "gpu.h"
#include "kernels/bind.h"
#include "kernels/emit.h"
#include "kernels/family.h"
#include "kernels/rules.h"
#include "kernels/shared/sm80.h"
#include "sdpa.h"

namespace rapt {
namespace {

constexpr const char* name = "attention_sm80";

constexpr int largest_dim = 256;
constexpr int64_t most_blocks = 0x7fffffff;  // grid.x of every GPU

int64_t div_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

bool vectors(const Access& access) { return access.unit_last && access.aligned16; }

// The first rule that a problem breaks, as a sentence; nothing is formatted when nobody asks.
bool accepts(const Problem& p, const Device& device, std::string* why) {
  if (refused_for_gpu(name, device, why) || refused_by_all(name, p, why)) return false;
  if (!is_16bit(p.q) || p.k != p.q)
    return refuse(name, why, "q=", name_of(p.q), " k=", name_of(p.k), ": both must be f16 or both bf16");
  if (!is_16bit(p.v)) return refuse(name, why, "v=", name_of(p.v), ": must be f16 or bf16");
  if (p.q_scales != ScaleKind::none || p.k_scales != ScaleKind::none || p.v_scales != ScaleKind::none)
    return refuse(name, why, "descale factors of 16-bit tensors are not supported");
  if (p.pv == PvMode::fp8 || p.pv == PvMode::fp8x2)
    return refuse(name, why, "pv=fp8: P.V is computed in 16 bits; pv=f16 or none");
  if (p.acc == AccMode::f16 && (p.q != DType::f16 || p.v != DType::f16))
    return refuse(name, why, "acc=f16, q=", name_of(p.q), " v=", name_of(p.v),
                  ": only products of f16 are summed in f16");
  for (const int64_t dim : {p.head_dim, p.head_dim_v})
    if (dim < 8 || dim % 8 != 0 || dim > largest_dim)
      return refuse(name, why, "head_dim ", p.head_dim, ":", p.head_dim_v, ": both must be multiples of 8 up to ",
                    largest_dim);
  for (const auto& [tensor, access] :
       {std::pair{"q", &p.access_q}, {"k", &p.access_k}, {"v", &p.access_v}, {"out", &p.access_out}})
    if (!vectors(*access))
      return refuse(name, why, tensor, ": rows must be contiguous, and base and strides multiples of 16 bytes");
  if (p.seqlen_q >= Band::longest || p.seqlen_k >= Band::longest)
    return refuse(name, why, "seqlens ", p.seqlen_q, " and ", p.seqlen_k, ": must be below ", Band::longest);
  if (p.batch * p.heads_q > most_blocks || p.batch * p.heads_q * div_up(p.seqlen_q, 32) > most_blocks)
    return refuse(name, why, "batch * heads_q * tiles of rows: must be at most ", most_blocks);
  return true;
}

// exp2(s * c - m * c) in one operation needs nothing between product and softmax, and a positive normal c.
bool can_fold(const Problem& p) {
  const float c = p.softmax_scale() * 1.44269504f;
  return !p.softcap && !p.bias.present() && !p.alibi && !p.mask.present() && c > 0.0f && std::isnormal(c);
}

// Tiles that were measured best on an H100 (docs/lab-notebook.md); `dim` is the larger of the two head dims.
AttentionConfig tiles(int block_m, int block_n, int warps_m, int warps_k, int stages) {
  AttentionConfig a;
  a.block_m = block_m, a.block_n = block_n, a.warps_m = warps_m, a.warps_k = warps_k, a.stages = stages;
  return a;
}

// What bounds the tiles: the larger head dim, what costs registers beside it, and the machine.
struct Demand {
  int dim;
  bool general;    // scores pass through more than one operation, or products are summed in f16
  bool bounded;    // each row has its own range of keys
  bool hopper;     // where the tiles were measured; elsewhere they are smaller, so that no compiler spills
  int smem_bytes;  // of a thread block
};

AttentionConfig long_tiles(const Demand& d) {
  const bool small = d.smem_bytes < 128 << 10;  // Ada and consumer Blackwell
  if (d.dim <= 64) return d.general ? tiles(64, 64, 4, 1, 2) : tiles(128, d.bounded || !d.hopper ? 64 : 128, 4, 1, 2);
  if (d.dim <= 128) {
    if (d.hopper && !d.general) return tiles(128, 64, 4, 1, 2);
    return tiles(64, small ? 32 : 64, 4, 1, 2);
  }
  if (small) return tiles(64, 32, 4, 1, 2);
  if (!d.hopper) return tiles(128, 32, 8, 1, 2);
  return tiles(128, d.general ? 32 : d.bounded ? 64 : 80, 8, 1, 2);
}

// For causal problems that fill the machine once or twice: rows differ in length, and smaller tiles even that out.
AttentionConfig medium_tiles(const Demand& d) {
  AttentionConfig a = tiles(64, d.general || !d.hopper ? 64 : d.dim <= 64 ? 128 : 96, 4, 1, 2);
  a.min_blocks = 2;
  return a;
}

// For problems of few rows: small row tiles, and keys dealt to four warps so that no warp walks far. Few keys are all
// on their way at once.
AttentionConfig short_tiles(int dim, bool few_keys) {
  AttentionConfig a = tiles(32, dim <= 64 ? 64 : dim <= 128 ? 32 : 16, 2, 4, 2);
  if (few_keys && dim <= 64) a.block_n = 128, a.stages = 1;
  a.q_in_registers = dim <= 128;
  return a;
}

// `invariant` rules out everything that looks at lengths, batch or heads.
AttentionConfig best_tiles(const Problem& p, const Device& device, const Demand& demand) {
  if (p.invariant) return long_tiles(demand);
  const int64_t heads = p.batch * p.heads_q;
  if (4 * heads * div_up(p.seqlen_q, 64) <= 5 * device.sm_count) return short_tiles(demand.dim, p.seqlen_k <= 512);
  if (demand.bounded && demand.dim <= 128 && heads * div_up(p.seqlen_q, 128) < 5 * device.sm_count)
    return medium_tiles(demand);
  return long_tiles(demand);
}

// Cards differ in shared memory: first fewer steps in flight, then smaller ones, then fewer rows.
void fit(AttentionConfig& a, int bytes) {
  while (smem_bytes(a) > bytes && a.stages > 1) --a.stages;
  while (smem_bytes(a) > bytes && a.block_n >= 32 && a.block_n % 32 == 0) a.block_n /= 2;
  while (smem_bytes(a) > bytes && a.warps_m > 1) a.block_m /= 2, a.warps_m /= 2;
}

KernelConfig configure(const Problem& p, const Device& device) {
  KernelConfig config;
  AttentionConfig& a = config.attention;
  const bool bounded = p.causal != Causal::none || p.window.has_value(), folded = can_fold(p);
  const int dim = static_cast<int>(std::max(p.head_dim, p.head_dim_v));
  a = best_tiles(p, device, {dim, !folded || p.acc == AccMode::f16, bounded, device.sm == 90, device.smem_per_block});
  a.q = p.q, a.k = p.k, a.v = p.v, a.out = p.out;
  a.head_dim = static_cast<int>(p.head_dim), a.head_dim_v = static_cast<int>(p.head_dim_v);
  a.folded = folded;
  a.softcap = p.softcap.has_value(), a.bias = p.bias.dtype, a.alibi = p.alibi, a.mask = p.mask.present();
  a.bounded = bounded;
  a.programmatic = a.warps_k > 1 && arch_number(device.arch) >= 90;
  a.f16_accumulate = p.acc == AccMode::f16;
  fit(a, device.smem_per_block);
  config.cached_bytes = device.l2_bytes / 2;
  config.block_m = a.block_m, config.block_n = a.block_n;
  return config;
}

size_t workspace_bytes(const Problem&, const KernelConfig&) { return 0; }

KernelUnit unit(const KernelConfig& config) {
  const AttentionConfig& a = config.attention;
  return {emit_unit("attention_sm80.cuh", "attention_sm80", a, "Sm80Params"), a.threads(),
          static_cast<size_t>(smem_bytes(a))};
}

// Heads by sections of the cache where rows differ in length; one after another where they do not.
TileOrder tile_order(const Problem& p, const KernelConfig& config) {
  const auto u = [](int64_t n) { return static_cast<unsigned>(n); };
  TileOrder order;
  order.group = Divisor::by(u(p.group()));
  if (config.attention.warps_k > 1) return order;  // the grid says it all
  int64_t fit = 1;
  if (config.attention.bounded) {
    const int64_t bytes = 2 * p.seqlen_k * (p.head_dim + p.head_dim_v);  // of a kv head
    fit = std::clamp<int64_t>(config.cached_bytes / std::max<int64_t>(bytes, 1), 1, p.batch * p.heads_k) * p.group();
  }
  return TileOrder::of(u(div_up(p.seqlen_q, config.attention.block_m)), u(p.batch), u(p.heads_q), u(p.group()), u(fit));
}

void launch(const LaunchScope& scope) {
  const Problem& p = scope.binding.problem;
  const int64_t blocks = p.batch * p.heads_q * div_up(p.seqlen_q, scope.config.attention.block_m);
  if (blocks == 0) return;
  const Sm80Params params{attention_params(scope.binding), tile_order(p, scope.config)};
  cuda::Kernel::Launch launch;
  const bool hurries = scope.config.attention.warps_k > 1;  // place_of_block() in attention_sm80.cuh
  launch.grid_x = static_cast<unsigned>(hurries ? blocks / (p.batch * p.heads_q) : blocks);
  if (hurries) launch.grid_y = static_cast<unsigned>(p.heads_q), launch.grid_z = static_cast<unsigned>(p.batch);
  launch.threads = static_cast<unsigned>(scope.kernel->unit.threads);
  launch.smem_bytes = scope.kernel->unit.smem_bytes;
  launch.stream = scope.stream;
  launch.programmatic = scope.config.attention.programmatic;
  scope.kernel->kernel->launch(launch, &params);
}

}  // namespace

const Family attention_sm80{name, accepts, configure, workspace_bytes, launch, unit};

}  // namespace rapt
