// attention_cpu, host half: takes every legal forward problem on a CPU; chooses tiles, deals them to threads.
// What runs is src/cpu/attention_tile.h, compiled once for each instruction set.
#include <algorithm>
#include <vector>

#include "context.h"
#include "cpu/attention_call.h"
#include "error.h"
#include "kernels/family.h"
#include "sdpa.h"
#include "tensor_rules.h"

namespace rapt {
namespace {

using cpu::AttentionCall;
using cpu::Tile;

constexpr int block_n = 96;              // keys of a tile: divides into blocks of 12 and into vectors of 16
constexpr int64_t keys_per_split = 768;  // at least; a multiple of block_n

bool accepts(const Problem& p, const Device& device, std::string* why) {
  auto refuse = [&](auto... parts) {
    if (why != nullptr) *why = concat("attention_cpu: ", parts...);
    return false;
  };
  if (device.kind != DeviceKind::cpu) return refuse("device ", device.name, " is not a CPU");
  if (p.op != Op::forward) return refuse("op is not forward attention");
  if (p.page_size != 0) return refuse("page=", p.page_size, ": paged KV is not supported");
  if (!p.mod.empty()) return refuse("mod=", p.mod, ": score modifications are not supported");
  if (p.smooth_k) return refuse("smooth_k: quantisation inside the call is not supported; pass quantised tensors");
  if (p.hadamard) return refuse("hadamard: quantisation inside the call is not supported; pass quantised tensors");
  if (p.pv == PvMode::fp8 || p.pv == PvMode::fp8x2)
    return refuse("pv=fp8: P.V is computed in f32 on CPUs; pv=f16 or none");
  if (p.acc == AccMode::f16) return refuse("acc=f16: CPUs accumulate in f32");
  return true;
}

// Rows that share one kv head may share a tile when sequences are shorter than half a tile.
bool packs_heads(const Problem& p) { return p.seqlen_q < 32 && p.group() > 1; }
int64_t rows_per_head_k(const Problem& p) { return packs_heads(p) ? p.seqlen_q * p.group() : p.seqlen_q; }

// A function of the Problem alone, never of the thread count: results must not depend on it.
int64_t choose_splits(const Problem& p, int block_m) {
  if (p.invariant) return 1;
  const int64_t most = std::max<int64_t>(p.seqlen_k / keys_per_split, 1);
  if (p.splits > 0) return std::min<int64_t>(p.splits, std::max<int64_t>((p.seqlen_k + block_n - 1) / block_n, 1));
  const int64_t heads = packs_heads(p) ? p.heads_k : p.heads_q;
  const int64_t tiles = p.batch * heads * ((rows_per_head_k(p) + block_m - 1) / block_m);
  constexpr int64_t wanted_tiles = 64;  // enough work items for many cores
  return std::clamp<int64_t>(wanted_tiles / std::max<int64_t>(tiles, 1), 1, most);
}

// The bf16 product kernels have wide tiles of plain bf16 only; their superset on the same machine has all the rest.
CpuIsa choose_isa(const Problem& p, const Device& device, int block_m) {
  const bool bf16 = p.q == DType::bf16 && p.k == DType::bf16 && p.v == DType::bf16;
  if (device.isa == CpuIsa::avx512_bf16 && (!bf16 || block_m == cpu::narrow_rows)) return CpuIsa::avx512;
  return device.isa;
}

KernelConfig configure(const Problem& p, const Device& device) {
  KernelConfig config;
  const int64_t rows = rows_per_head_k(p);
  // Wide tiles of any height give a row the same bits; the narrow kernel does not, so invariant mode avoids it.
  config.block_m = rows <= cpu::narrow_rows && !p.invariant ? cpu::narrow_rows : rows <= 16 ? 16 : rows <= 32 ? 32 : 64;
  config.isa = choose_isa(p, device, config.block_m);
  config.block_n = block_n;
  config.splits = choose_splits(p, config.block_m);
  return config;
}

// Floats of one tile's partial state.
int64_t state_floats(const Problem& p, const KernelConfig& c) { return c.block_m * (p.head_dim_v + 2); }

// Upper bound of tiles: varlen sequences are only known by their maximum and total.
int64_t tile_bound(const Problem& p, const KernelConfig& c) {
  const int64_t heads = packs_heads(p) ? p.heads_k : p.heads_q, per_row = packs_heads(p) ? p.group() : 1;
  if (!p.varlen) return p.batch * heads * ((rows_per_head_k(p) + c.block_m - 1) / c.block_m);
  return heads * (p.total_q * per_row / c.block_m + std::min(p.batch, p.total_q));  // a tile begins with a row
}

size_t workspace_bytes(const Problem& p, const KernelConfig& c) {
  if (c.splits <= 1) return 0;
  size_t states = 0, bytes = 0;
  if (__builtin_mul_overflow(tile_bound(p, c), c.splits, &states) ||
      __builtin_mul_overflow(states, state_floats(p, c) * int64_t{sizeof(float)}, &bytes))
    return SIZE_MAX;  // more than any machine has
  return bytes;
}

cpu::TensorRef tensor_ref(const rapt_tensor& t, bool packed) {
  const auto s = strides_of(t);
  const auto dtype = static_cast<DType>(t.dtype);
  if (packed) return {t.data, dtype, 0, s[1], s[0], s[2]};
  return {t.data, dtype, s[0], s[1], s[2], s[3]};
}

cpu::TensorRef lse_ref(const rapt_tensor& t, bool packed) {
  const auto s = strides_of(t);
  if (packed) return {t.data, DType::f32, 0, s[0], s[1], 0};
  return {t.data, DType::f32, s[0], s[1], s[2], 0};
}

cpu::BroadcastRef broadcast_ref(const rapt_tensor* t) {
  if (t == nullptr) return {};
  const auto s = strides_of(*t);
  int64_t stride[max_rank] = {0, 0, 0, 0};
  for (int i = 0; i < t->rank; ++i) stride[max_rank - t->rank + i] = t->shape[i] == 1 ? 0 : s[i];
  return {t->data, static_cast<DType>(t->dtype), stride[0], stride[1], stride[2], stride[3]};
}

cpu::ScaleRef scale_ref(const rapt_tensor* t, ScaleKind kind, bool varlen) {
  if (t == nullptr) return {};
  const auto s = strides_of(*t);
  cpu::ScaleRef ref;
  ref.data = static_cast<const float*>(t->data);
  switch (kind) {
    case ScaleKind::none:
    case ScaleKind::tensor: break;
    case ScaleKind::head: ref.batch = s[0], ref.head = s[1]; break;
    case ScaleKind::token:
      ref.rows = 1;
      ref.packed_rows = varlen;
      if (varlen)
        ref.head = s[0], ref.position = s[1];
      else
        ref.batch = s[0], ref.head = s[1], ref.position = s[2];
      break;
    case ScaleKind::block64:
    case ScaleKind::block128:
      ref.rows = kind == ScaleKind::block64 ? 64 : 128;
      ref.batch = s[0], ref.head = s[1], ref.position = s[2];
      break;
    case ScaleKind::channel: ref.batch = s[0], ref.head = s[1], ref.channel = s[2]; break;
  }
  return ref;
}

AttentionCall make_call(const Binding& binding, const KernelConfig& config) {
  const rapt_sdpa_args& a = binding.args;
  const Problem& p = binding.problem;
  AttentionCall call;
  call.q = tensor_ref(*a.q, p.varlen), call.k = tensor_ref(*a.k, p.varlen), call.v = tensor_ref(*a.v, p.varlen);
  call.out = tensor_ref(*a.out, p.varlen);
  if (a.lse != nullptr) call.lse = lse_ref(*a.lse, p.varlen);
  call.q_scale = scale_ref(a.q_descale, p.q_scales, p.varlen);
  call.k_scale = scale_ref(a.k_descale, p.k_scales, p.varlen);
  call.v_scale = scale_ref(a.v_descale, p.v_scales, p.varlen);
  call.bias = broadcast_ref(a.bias), call.mask = broadcast_ref(a.mask);
  if (a.alibi_slopes != nullptr) {
    const auto s = strides_of(*a.alibi_slopes);
    call.alibi_slopes = static_cast<const float*>(a.alibi_slopes->data);
    call.alibi_batch = p.alibi_per_batch ? s[0] : 0, call.alibi_head = p.alibi_per_batch ? s[1] : s[0];
  }
  if (a.sinks != nullptr)
    call.sinks = static_cast<const float*>(a.sinks->data), call.sinks_head = strides_of(*a.sinks)[0];
  call.group = p.group();
  call.head_dim = p.head_dim, call.head_dim_v = p.head_dim_v;
  call.scale = p.softmax_scale();
  call.softcap = p.softcap.value_or(0.0f);
  call.position_mask.causal = static_cast<CausalKind>(p.causal);
  if (p.window) call.position_mask.window_left = p.window->left, call.position_mask.window_right = p.window->right;
  call.block_n = config.block_n;
  return call;
}

// One sequence of the batch: lengths read from the tensors, which check_contents has seen.
struct Sequence {
  int64_t seqlen_q = 0, seqlen_k = 0, offset = 0, first_q = 0, first_k = 0;
};

template <class T>
T element(const rapt_tensor& t, int64_t i) {
  return static_cast<const T*>(t.data)[i * strides_of(t)[0]];
}

Sequence sequence_of(const Binding& binding, int64_t b) {
  const rapt_sdpa_args& a = binding.args;
  const Problem& p = binding.problem;
  Sequence s{p.seqlen_q, p.seqlen_k, 0, 0, 0};
  if (p.varlen) {
    s.first_q = element<int32_t>(*a.cu_seqlens_q, b), s.first_k = element<int32_t>(*a.cu_seqlens_k, b);
    // A length above its max counts as max.
    s.seqlen_q = std::min<int64_t>(element<int32_t>(*a.cu_seqlens_q, b + 1) - s.first_q, p.seqlen_q);
    s.seqlen_k = std::min<int64_t>(element<int32_t>(*a.cu_seqlens_k, b + 1) - s.first_k, p.seqlen_k);
  }
  if (p.seqused) s.seqlen_k = std::min<int64_t>(element<int32_t>(*a.seqused_k, b), s.seqlen_k);
  if (p.has_starts) {
    const int64_t q = a.q_starts != nullptr             ? element<int64_t>(*a.q_starts, b)
                      : (a.has & RAPT_HAS_Q_START) != 0 ? a.q_start
                                                        : 0;
    const int64_t k = a.k_starts != nullptr             ? element<int64_t>(*a.k_starts, b)
                      : (a.has & RAPT_HAS_K_START) != 0 ? a.k_start
                                                        : 0;
    s.offset = q - k;  // each within 2^60
  } else if (p.causal != Causal::top_left) {
    s.offset = s.seqlen_k - s.seqlen_q;
  }
  return s;
}

// All tiles of a call, addressed by index. The tiles of a head follow each other, so that its keys stay in cache; late
// rows come first: under causal masks they are the longest.
class TileMap {
 public:
  TileMap(const Binding& binding, const KernelConfig& config)
      : p_(binding.problem), block_m_(config.block_m), splits_(config.splits), pack_(packs_heads(p_)) {
    heads_ = pack_ ? p_.heads_k : p_.heads_q;
    sequences_.reserve(static_cast<size_t>(p_.varlen || p_.seqused || p_.has_starts ? p_.batch : 1));
    first_tile_.push_back(0);
    for (int64_t b = 0; b < p_.batch; ++b) {
      sequences_.push_back(sequence_of(binding, b));
      first_tile_.push_back(first_tile_.back() + heads_ * row_tiles(sequences_.back()));
    }
  }

  int64_t tiles() const { return first_tile_.back(); }

  // Tile number `index` over part `split` of the keys.
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
  std::vector<int64_t> first_tile_;  // per sequence, and the total
};

void launch(const KernelConfig& config, const Binding& binding, Context& context, void* caller_workspace) {
  const cpu::AttentionKernel& kernel = *cpu_kernel(config.isa);
  const AttentionCall call = make_call(binding, config);
  const TileMap map(binding, config);
  CpuResources& cpu = context.cpu();
  const std::lock_guard<std::mutex> turn(cpu.turn);
  const size_t scratch_bytes = (kernel.scratch_bytes(call, config.block_m) + 63) / 64 * 64;
  std::byte* const scratch = cpu.scratch.reserve(scratch_bytes * static_cast<size_t>(cpu.pool.size()));
  auto scratch_of = [&](int worker) { return scratch + static_cast<size_t>(worker) * scratch_bytes; };
  if (config.splits == 1) {
    cpu.pool.parallel_for(map.tiles(), [&](int worker, int64_t index) {
      kernel.attend(call, map.tile(index, 0), config.block_m, scratch_of(worker));
    });
    return;
  }
  const size_t bytes = workspace_bytes(binding.problem, config);
  auto* const states =
      static_cast<float*>(caller_workspace != nullptr ? caller_workspace : cpu.workspace.reserve(bytes));
  const int64_t stride = state_floats(binding.problem, config);
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

const Family attention_cpu{"attention_cpu", accepts, configure, workspace_bytes, launch};

}  // namespace rapt
