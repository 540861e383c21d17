// rapt_kv_append, host code: the kernel's configuration, translation unit and launch. The kernel is in kv_append.cuh.
#include "kernels/kv_append/kv_append_gpu.h"

#include <algorithm>
#include <initializer_list>

#include "base/error.h"
#include "kernels/config_table.h"

namespace rapt {
// Converts the enumeration in the config table to text.
static std::string config_word(ScaleKind kind) {
  return kind == ScaleKind::head ? "head" : kind == ScaleKind::token ? "token" : "none";
}
static std::string config_code(ScaleKind kind) { return concat("rapt::ScaleKind::", config_word(kind)); }

namespace {

// Returns whether all addresses are multiples of `alignment` bytes: the base, and the strides.
bool is_aligned(const void* data, int bytes, int alignment, std::initializer_list<index_t> strides) {
  return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(alignment) == 0 &&
         std::all_of(strides.begin(), strides.end(), [&](index_t s) { return s * bytes % alignment == 0; });
}
bool is_aligned(const TensorRef& t, int alignment) {
  return t.column == 1 && is_aligned(t.data, bytes_of(t.dtype), alignment, {t.batch, t.head, t.row});
}
bool has_vectors(const TensorRef& from, const TensorRef& to, index_t dim, index_t rotary_dim) {
  const int chunk = 16 / bytes_of(from.dtype);
  return dim % chunk == 0 && rotary_dim % (2 * chunk) == 0 && is_aligned(from, 16) &&
         is_aligned(to, chunk * bytes_of(to.dtype));
}
// A unit reads `chunk` elements of a table row, in pieces of at most 16 bytes.
bool has_table_vectors(const RotaryTables& t, DType from, bool vectors) {
  if (!t.present() || !vectors) return false;
  const int bytes = bytes_of(t.dtype), alignment = std::min(16 / bytes_of(from) * bytes, 16);
  return t.cos_column == 1 && t.sin_column == 1 && is_aligned(t.cos, bytes, alignment, {t.cos_row}) &&
         is_aligned(t.sin, bytes, alignment, {t.sin_row});
}

constexpr ConfigField config_fields[] = {
    config_field<KvAppendConfig, &KvAppendConfig::k>("k"),
    config_field<KvAppendConfig, &KvAppendConfig::k_cache>("k_cache"),
    config_field<KvAppendConfig, &KvAppendConfig::v>("v"),
    config_field<KvAppendConfig, &KvAppendConfig::v_cache>("v_cache"),
    config_field<KvAppendConfig, &KvAppendConfig::q>("q"),
    config_field<KvAppendConfig, &KvAppendConfig::table>("table"),
    config_field<KvAppendConfig, &KvAppendConfig::dim>("dim"),
    config_field<KvAppendConfig, &KvAppendConfig::dim_v>("dim_v"),
    config_field<KvAppendConfig, &KvAppendConfig::rotary_dim>("rotary_dim"),
    config_field<KvAppendConfig, &KvAppendConfig::k_scales>("k_scales"),
    config_field<KvAppendConfig, &KvAppendConfig::v_scales>("v_scales"),
    config_field<KvAppendConfig, &KvAppendConfig::interleaved>("interleaved"),
    config_field<KvAppendConfig, &KvAppendConfig::k_vectors>("k_vectors"),
    config_field<KvAppendConfig, &KvAppendConfig::v_vectors>("v_vectors"),
    config_field<KvAppendConfig, &KvAppendConfig::q_vectors>("q_vectors"),
    config_field<KvAppendConfig, &KvAppendConfig::k_table_vectors>("k_table_vectors"),
    config_field<KvAppendConfig, &KvAppendConfig::q_table_vectors>("q_table_vectors"),
};
constexpr ConfigType config_table = config_type<KvAppendConfig>("KvAppendConfig", config_fields);

void check_limits(const KvAppendParams& p) {
  constexpr index_t most = 0x7fffffff;
  for (const index_t dim : {p.dim, p.dim_v})
    if (dim > AppendRows::max_dim)
      unsupported(dim == p.dim ? "k" : "v", ": head dim ", dim, ": a GPU appends rows of at most ", AppendRows::max_dim,
                  " elements");
  for (const bool of_q : {false, true})
    if (append_tokens(p, of_q) >= most)
      unsupported(of_q ? "q" : "k", ": ", append_tokens(p, of_q), " tokens: a GPU appends fewer than 2^31 - 1");
  if (2 * p.heads_k + p.heads_q > most)
    unsupported("k: ", p.heads_k, " heads: a GPU appends fewer than 2^31 heads, those of k, v and q together");
}

}  // namespace

bool kv_append_has_work(const KvAppendParams& p) {
  return (append_tokens(p, false) > 0 && p.heads_k > 0) || (p.has_q() && append_tokens(p, true) > 0 && p.heads_q > 0);
}

KvAppendConfig kv_append_config(const KvAppendParams& p) {
  check_limits(p);
  KvAppendConfig c;
  c.k = p.k.dtype, c.k_cache = p.k_cache.dtype, c.v = p.v.dtype, c.v_cache = p.v_cache.dtype;
  c.q = p.q.dtype, c.table = p.rotary.dtype;
  c.dim = static_cast<int>(p.dim), c.dim_v = static_cast<int>(p.dim_v);
  c.rotary_dim = static_cast<int>(p.rotary.rotary_dim);
  c.k_scales = p.k_scales.kind, c.v_scales = p.v_scales.kind;
  c.interleaved = p.rotary.interleaved;
  c.k_vectors = has_vectors(p.k, p.k_cache, p.dim, p.rotary.rotary_dim);
  c.v_vectors = has_vectors(p.v, p.v_cache, p.dim_v, 0);
  c.q_vectors = p.has_q() && has_vectors(p.q, p.q_out, p.dim, p.rotary.rotary_dim);
  c.k_table_vectors = has_table_vectors(p.rotary, p.k.dtype, c.k_vectors);
  c.q_table_vectors = p.has_q() && has_table_vectors(p.rotary, p.q.dtype, c.q_vectors);
  return c;
}

KernelUnit kv_append_unit(const KvAppendConfig& c) {
  return {emit_unit("kv_append/kv_append.cuh", "kv_append", config_table, &c, "KvAppendParams", "cfg.min_blocks()"),
          KvAppendConfig::threads(), 0};
}

LaunchSpec kv_append_launch(const KvAppendParams& params, const KvAppendConfig& config, int multiprocessors) {
  KvAppendParams p = params;
  p.seqlen_divmod = FastDivmod::by(static_cast<unsigned>(std::max<index_t>(p.seqlen, 1)));
  p.seqlen_q_divmod = FastDivmod::by(static_cast<unsigned>(std::max<index_t>(p.seqlen_q, 1)));
  struct Part {
    AppendRows rows;
    index_t tokens, heads;
    AppendGroups* groups;
  };
  const Part parts[] = {{config.k_rows(), append_tokens(p, false), p.heads_k, &p.k_groups},
                        {config.v_rows(), append_tokens(p, false), p.heads_k, &p.v_groups},
                        {config.q_rows(), append_tokens(p, true), p.has_q() ? p.heads_q : 0, &p.q_groups}};
  index_t threads = 0;
  for (const Part& part : parts)
    if (part.heads > 0) threads += part.tokens * part.heads * part.rows.lanes();
  // A thread takes several heads only if the threads then still fill the GPU.
  constexpr index_t threads_per_multiprocessor = 1024;
  const index_t spare = threads / (threads_per_multiprocessor * std::max(multiprocessors, 1));
  index_t blocks_x = 0, blocks_y = 0;
  for (const Part& part : parts) {
    if (part.heads == 0 || part.tokens == 0) continue;
    AppendGroups& groups = *part.groups;
    const index_t most = clamped(spare, 1, part.rows.max_heads());
    groups.count = static_cast<int>((part.heads + most - 1) / most);
    groups.heads = static_cast<int>((part.heads + groups.count - 1) / groups.count);
    blocks_x = std::max(blocks_x, (part.tokens + part.rows.teams() - 1) / part.rows.teams());
    blocks_y += groups.count;
  }
  LaunchSpec spec(p);
  spec.grid_x = static_cast<unsigned>(blocks_x);
  spec.grid_y = static_cast<unsigned>(clamped(blocks_y, 1, max_grid_yz));
  return spec;
}

}  // namespace rapt
