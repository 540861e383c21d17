// KvAppendConfig: the compile-time choices and the work decomposition of the kernel of rapt_kv_append. Set by
// kv_append_gpu.cpp, read by kv_append.cuh. Includes nothing outside shared/.
#pragma once

#include "../shared/kv_append.h"

namespace rapt {

// The rows of one tensor: of k, v or q. A chunk is 16 bytes of the input, or one element if the layout does not allow
// vectors. A team of `lanes` threads processes a row. A lane takes units of two chunks. In the rotated channels, the
// two chunks of a unit contain the partners of each other.
struct AppendRows {
  DType from = DType::none, to = DType::none;
  int dim = 0, rotary_dim = 0;  // rotary_dim: 0 if nothing is rotated
  ScaleKind scales = ScaleKind::none;
  bool interleaved = false, vectors = false, table_vectors = false;
  DType table = DType::none;

  constexpr bool operator==(const AppendRows&) const = default;

  static constexpr int threads = 128, max_dim = 1024;
  constexpr bool present() const { return from != DType::none; }
  constexpr bool quantised() const { return scales != ScaleKind::none; }
  constexpr int chunk() const { return vectors ? 16 / bytes_of(from) : 1; }
  constexpr int chunks() const { return dim / chunk(); }
  constexpr int rotated_units() const { return rotary_dim / 2 / chunk(); }
  constexpr int other_chunks() const { return chunks() - 2 * rotated_units(); }
  constexpr int other_units() const { return (other_chunks() + 1) / 2; }
  constexpr int units() const { return rotated_units() + other_units(); }
  constexpr int lanes() const {
    int lanes = 1;
    while (lanes < 32 && lanes < units()) lanes *= 2;
    return lanes;
  }
  constexpr int units_per_lane() const { return (units() + lanes() - 1) / lanes(); }
  constexpr int teams() const { return threads / lanes(); }
  // Registers of a lane for one row.
  constexpr int words() const { return units_per_lane() * 2 * (vectors ? 4 : 1); }
  // The most heads of a group. They share a token, so its place in the cache and its angles are read once. A thread
  // loads the row of a head `heads_ahead` heads before it stores the row. The numbers were the fastest on an H200
  // (docs/lab-notebook.md).
  constexpr int max_heads() const { return words() > 8 ? 1 : rotary_dim > 0 ? 8 : 4; }
  constexpr int heads_ahead() const {
    return max_heads() == 4 && scales == ScaleKind::head ? 4 : max_heads() > 1 ? 2 : 1;
  }

  // The chunks of a unit. second = -1: the unit has one chunk.
  struct Unit {
    int first, second;
  };
  constexpr Unit unit(int u) const {
    if (u < rotated_units()) return interleaved ? Unit{2 * u, 2 * u + 1} : Unit{u, u + rotated_units()};
    const int first = rotated_units() + u, second = first + other_units();
    return {first, second < chunks() ? second : -1};
  }
};

struct KvAppendConfig {
  DType k = DType::bf16, k_cache = DType::bf16, v = DType::bf16, v_cache = DType::bf16;
  DType q = DType::none, table = DType::none;  // none: absent
  int dim = 0, dim_v = 0, rotary_dim = 0;
  ScaleKind k_scales = ScaleKind::none, v_scales = ScaleKind::none;
  bool interleaved = false;
  bool k_vectors = false, v_vectors = false, q_vectors = false;  // layouts that allow vectors
  bool k_table_vectors = false, q_table_vectors = false;         // the same for the tables, with the chunks of k and q

  constexpr bool operator==(const KvAppendConfig&) const = default;

  constexpr AppendRows k_rows() const {
    return {k, k_cache, dim, rotary_dim, k_scales, interleaved, k_vectors, k_table_vectors, table};
  }
  constexpr AppendRows v_rows() const { return {v, v_cache, dim_v, 0, v_scales, false, v_vectors, false, DType::none}; }
  constexpr AppendRows q_rows() const {
    return {q, q, dim, rotary_dim, ScaleKind::none, interleaved, q_vectors, q_table_vectors, table};
  }
  static constexpr int threads() { return AppendRows::threads; }
  // CTAs per SM in __launch_bounds__. Rows in many registers leave room for fewer.
  constexpr int min_blocks() const {
    const int k_words = k_rows().words(), v_words = v_rows().words();
    const int q_words = q == DType::none ? 0 : q_rows().words();
    const int most_kv = k_words > v_words ? k_words : v_words, most = most_kv > q_words ? most_kv : q_words;
    return most > 32 ? 1 : most > 16 ? 2 : 4;
  }
};

// Number of tokens of k and v, or of q.
constexpr index_t append_tokens(const KvAppendParams& p, bool of_q) {
  return p.packed ? p.total : p.batch * (of_q ? p.seqlen_q : p.seqlen);
}
}  // namespace rapt
