// attention_cpu: accepts every legal forward problem on a CPU, chooses tiles, and distributes them over threads. The
// kernel is src/cpu/attention_tile.h, compiled once for each instruction set.
#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "base/error.h"
#include "cpu/attention_call.h"
#include "cpu/isa.h"
#include "cpu/resources.h"
#include "kernels/family.h"
#include "kernels/rules.h"

namespace rapt {
static std::string config_word(CpuIsa isa) { return name_of(isa); }
static std::string config_code(CpuIsa isa) { return name_of(isa); }

namespace {

constexpr const char* name = "attention_cpu";

using cpu::Tile;

struct CpuConfig {
  CpuIsa isa = CpuIsa::scalar;
  int block_m = 0;     // query rows of a tile
  int block_n = 0;     // keys of a tile
  int64_t splits = 1;  // split-KV: number of parts of the keys. It does not depend on the number of threads
  bool operator==(const CpuConfig&) const = default;
};
constexpr ConfigField config_fields[] = {
    config_field<CpuConfig, &CpuConfig::isa>("isa"), config_field<CpuConfig, &CpuConfig::block_m>("block_m"),
    config_field<CpuConfig, &CpuConfig::block_n>("block_n"), config_field<CpuConfig, &CpuConfig::splits>("splits")};
constexpr ConfigType config_table = config_type<CpuConfig>("CpuConfig", config_fields);

constexpr int block_n = 96;              // keys of a tile: a multiple of 12 columns and of 16 lanes
constexpr int64_t keys_per_split = 768;  // minimum; a multiple of block_n

bool accepts(const Problem& p, const Device& device, std::string* why) {
  if (device.kind != DeviceKind::cpu) return refuse(name, why, "device ", device.name, " is not a CPU");
  if (refused_by_all(name, p, why)) return false;
  if (p.acc == AccMode::f16) return refuse(name, why, "acc=f16: CPUs accumulate in f32");
  if (p.acc == AccMode::tf32) return refuse(name, why, "acc=tf32: CPUs multiply f32 numbers");
  return true;
}

// Pack GQA: query heads that share a kv head also share tiles if there are fewer than 32 queries (half a tile).
bool packs_heads(const Problem& p) { return p.seqlen_q < 32 && p.group() > 1; }
int64_t rows_per_head_k(const Problem& p) { return packs_heads(p) ? p.seqlen_q * p.group() : p.seqlen_q; }

// The number of splits depends only on the Problem, because results must not depend on the number of threads.
int64_t choose_splits(const Problem& p, int block_m) {
  if (p.invariant) return 1;
  const int64_t most = std::max<int64_t>(p.seqlen_k / keys_per_split, 1);
  if (p.splits > 0) return std::min<int64_t>(p.splits, std::max<int64_t>((p.seqlen_k + block_n - 1) / block_n, 1));
  const int64_t heads = packs_heads(p) ? p.heads_k : p.heads_q;
  const int64_t tiles = p.batch * heads * ((rows_per_head_k(p) + block_m - 1) / block_m);
  constexpr int64_t wanted_tiles = 64;  // enough work for many cores
  return std::clamp<int64_t>(wanted_tiles / std::max<int64_t>(tiles, 1), 1, most);
}

// The avx512_bf16 kernels support only wide tiles with bf16 q, k and v. Otherwise avx512 is used.
CpuIsa choose_isa(const Problem& p, const Device& device, int block_m) {
  const bool bf16 = p.q == DType::bf16 && p.k == DType::bf16 && p.v == DType::bf16;
  if (device.isa == CpuIsa::avx512_bf16 && (!bf16 || block_m == cpu::narrow_rows)) return CpuIsa::avx512;
  return device.isa;
}

KernelConfig configure(const Problem& p, const Device& device) {
  CpuConfig config;
  const int64_t rows = rows_per_head_k(p);
  // All wide tiles give a row the same bits. The narrow layout gives other bits, so `invariant` excludes it.
  config.block_m = rows <= cpu::narrow_rows && !p.invariant ? cpu::narrow_rows : rows <= 16 ? 16 : rows <= 32 ? 32 : 64;
  config.isa = choose_isa(p, device, config.block_m);
  config.block_n = block_n;
  config.splits = choose_splits(p, config.block_m);
  return {config_table, config};
}

// Returns the number of floats in the partial state of one tile: max, sum, o.
int64_t state_floats(const Problem& p, const CpuConfig& c) { return c.block_m * (p.head_dim_v + 2); }

// Returns an upper bound of the number of tiles. For varlen, only the maximum and the total of the lengths are known.
int64_t tile_bound(const Problem& p, const CpuConfig& c) {
  const int64_t heads = packs_heads(p) ? p.heads_k : p.heads_q, per_row = packs_heads(p) ? p.group() : 1;
  if (!p.varlen) return p.batch * heads * ((rows_per_head_k(p) + c.block_m - 1) / c.block_m);
  return heads * (p.total_q * per_row / c.block_m + std::min(p.batch, p.total_q));  // every tile has at least one row
}

size_t workspace_bytes(const Problem& p, const KernelConfig& config) {
  const auto& c = config.as<CpuConfig>();
  if (c.splits <= 1) return 0;
  size_t states = 0, bytes = 0;
  if (__builtin_mul_overflow(tile_bound(p, c), c.splits, &states) ||
      __builtin_mul_overflow(states, state_floats(p, c) * int64_t{sizeof(float)}, &bytes))
    return SIZE_MAX;  // exceeds any memory
  return bytes;
}

// TileMap: the tiles of a call by index. The tiles of a head are consecutive, so that its keys stay in the cache. The
// last rows come first, because with causal masks they take longest.
class TileMap {
 public:
  TileMap(const Problem& problem, const AttentionParams& params, const CpuConfig& config)
      : p_(problem), block_m_(config.block_m), splits_(config.splits), pack_(packs_heads(p_)) {
    heads_ = pack_ ? p_.heads_k : p_.heads_q;
    sequences_.reserve(static_cast<size_t>(p_.varlen || p_.seqused || p_.seqused_q || p_.has_starts ? p_.batch : 1));
    first_tile_.push_back(0);
    for (int64_t b = 0; b < p_.batch; ++b) {
      sequences_.push_back(sequence_of(params, b));
      first_tile_.push_back(first_tile_.back() + heads_ * row_tiles(sequences_.back()));
    }
  }

  int64_t tiles() const { return first_tile_.back(); }
  const Sequence& sequence(int64_t b) const { return sequences_[static_cast<size_t>(b)]; }

  // Returns tile `index`, restricted to part `split` of the keys.
  Tile tile(int64_t index, int64_t split) const {
    const auto after = std::upper_bound(first_tile_.begin(), first_tile_.end(), index);
    const int64_t b = after - first_tile_.begin() - 1;
    const Sequence& s = sequences_[static_cast<size_t>(b)];
    const int64_t within = index - first_tile_[static_cast<size_t>(b)];
    const int64_t head = within / row_tiles(s), row_tile = row_tiles(s) - 1 - within % row_tiles(s);
    Tile t;
    t.batch = b;
    t.head_k = pack_ ? head : head / p_.group();
    t.head_q = pack_ ? head * p_.group() : head;
    t.first_row = row_tile * block_m_;
    t.rows = static_cast<int>(std::min<int64_t>(block_m_, rows(s) - t.first_row));
    t.seqlen_q = s.seqlen_q, t.seqlen_k = s.seqlen_k, t.offset = s.offset, t.first_q = s.first_q, t.first_k = s.first_k;
    const int64_t key_tiles = (s.seqlen_k + block_n - 1) / block_n, per_split = (key_tiles + splits_ - 1) / splits_;
    t.key_begin = std::min(split * per_split * block_n, s.seqlen_k);
    t.key_end = std::min((split + 1) * per_split * block_n, s.seqlen_k);
    return t;
  }

 private:
  int64_t rows(const Sequence& s) const { return pack_ ? s.seqlen_q * p_.group() : s.seqlen_q; }
  int64_t row_tiles(const Sequence& s) const { return (rows(s) + block_m_ - 1) / block_m_; }

  const Problem& p_;
  const int64_t block_m_, splits_;
  const bool pack_;
  int64_t heads_ = 0;
  std::vector<Sequence> sequences_;
  std::vector<int64_t> first_tile_;  // prefix sums of tiles per sequence
};

// Sets the rows of one head beyond seqused_q to out = 0, lse = -inf. Zero bits are 0 in every output dtype.
void clear_unused_rows(const AttentionParams& p, const Sequence& s, int64_t b, int64_t h) {
  const int64_t width = bytes_of(p.out.dtype);
  for (int64_t row = s.first_q + s.seqlen_q; row < s.first_q + s.rows_q; ++row) {
    char* const out = static_cast<char*>(p.out.data) + p.out.index(b, h, row) * width;
    for (int64_t c = 0; c < p.head_dim_v; ++c)
      std::memset(out + c * p.out.column * width, 0, static_cast<size_t>(width));
    if (p.lse.present())
      static_cast<float*>(p.lse.data)[p.lse.index(b, h, row)] = -std::numeric_limits<float>::infinity();
  }
}

// Number of E4M3 terms of P; 0: P stays f32.
int p_terms_of(PvMode pv) { return pv == PvMode::fp8 ? 1 : pv == PvMode::fp8x2 ? 2 : 0; }

void run(const StepCall& step, CpuResources& cpu, void* workspace) {
  const auto& config = step.config.as<CpuConfig>();
  const cpu::AttentionKernel& kernel = *cpu_kernel(config.isa);
  cpu::Call call{step.params, p_terms_of(step.problem.pv)};
  call.block_n = config.block_n;
  const TileMap map(step.problem, call, config);
  const std::lock_guard<std::mutex> lock(cpu.call_mutex);
  if (call.seqused_q.present())
    cpu.pool.parallel_for(call.batch * call.heads_q, [&](int, int64_t bh) {
      const int64_t b = bh / call.heads_q;
      clear_unused_rows(call, map.sequence(b), b, bh % call.heads_q);
    });
  const size_t scratch_bytes = (kernel.scratch_bytes(call, config.block_m) + 63) / 64 * 64;
  std::byte* const scratch = cpu.scratch.reserve(scratch_bytes * static_cast<size_t>(cpu.pool.size()));
  auto scratch_of = [&](int worker) { return scratch + static_cast<size_t>(worker) * scratch_bytes; };
  if (config.splits == 1) {
    cpu.pool.parallel_for(map.tiles(), [&](int worker, int64_t index) {
      kernel.attend(call, map.tile(index, 0), config.block_m, scratch_of(worker));
    });
    return;
  }
  const size_t bytes = workspace_bytes(step.problem, step.config);
  auto* const states = static_cast<float*>(workspace != nullptr ? workspace : cpu.workspace.reserve(bytes));
  const int64_t stride = state_floats(step.problem, config);
  cpu.pool.parallel_for(map.tiles() * config.splits, [&](int worker, int64_t index) {
    Tile tile = map.tile(index / config.splits, index % config.splits);
    tile.partial = states + index * stride;
    kernel.attend(call, tile, config.block_m, scratch_of(worker));
  });
  cpu.pool.parallel_for(map.tiles(), [&](int worker, int64_t index) {
    kernel.combine(call, map.tile(index, 0), config.block_m, states + index * config.splits * stride, stride,
                   config.splits, scratch_of(worker));
  });
}

}  // namespace

extern const Family attention_cpu{.name = name,
                                  .accepts = accepts,
                                  .configure = configure,
                                  .config_type = config_table,
                                  .workspace_bytes = workspace_bytes,
                                  .run = run,
                                  .priority = 1000};

}  // namespace rapt
