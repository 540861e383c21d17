// attention_sm80, device half: attention with mma.sync and cp.async, for sm_80 and everything newer, on 16-bit tensors
// and FP8 ones. Called by the entry that emit_unit (config_table.cpp) writes; assumes what attention_sm80.cpp accepts:
// unit last strides, 16-byte aligned rows, sequences shorter than Band::longest. The algorithm is FlashAttention-2's
// (Dao 2023): a thread block owns block_m query rows and walks the keys that any of them sees; scores never leave
// registers.
#pragma once

#include "descale.cuh"
#include "device/score.cuh"
#include "device/softmax.cuh"
#include "device/tile.cuh"
#include "output.cuh"
#include "ptx/copy.cuh"
#include "shared/key_tiles.h"
#include "shared/kv_view.h"
#include "sm80.h"
#include "step_products.cuh"
#include "unused_rows.cuh"
#include "value_passes.cuh"

namespace rapt {

template <Sm80Config cfg>
struct AttentionSm80 {
  static constexpr Sm80Layout layout{cfg};
  static constexpr int threads = cfg.threads(), step_keys = cfg.step_keys(), stages = cfg.stages;
  static constexpr int warp_rows = cfg.block_m / cfg.warps_m;
  static constexpr int m_tiles = warp_rows / 16, n_tiles = cfg.block_n / 8, v_tiles = layout.dim_v / 8;
  using Keys = KeyFragments<cfg>;
  using Values = ValueFragments<cfg>;
  static constexpr int q_steps = layout.q_row / 32;
  static_assert(warp_rows % 16 == 0 && cfg.block_n % Values::keys == 0 && n_tiles % Keys::tiles == 0,
                "warps take whole mma tiles");
  static_assert(!(cfg.folded && has_user_score), "folded scores are changed by nothing but the scale");
  static_assert(!(cfg.softcap && cfg.key_mean), "a soft cap would need the keys' mean in each logit");
  using QTile = SmemTile<cfg.block_m, layout.q_row>;
  using KTile = SmemTile<step_keys, layout.k_row>;
  using VTile = SmemTile<step_keys, layout.v_row>;
  using Softmax = OnlineSoftmax<cfg.folded, m_tiles, cfg.f16_accumulate || (cfg.p_terms > 0), cfg.p_terms == 0 ? 0 : 8,
                                has_row_factors(cfg)>;
  using Queries = QueryTile<cfg, QTile>;
  using End = BlockOutput<cfg, Softmax>;
  using QFragments = unsigned[cfg.q_in_registers ? m_tiles : 1][cfg.q_in_registers ? q_steps : 1][4];
  using Scores = float[m_tiles][n_tiles][4];
  using Output = float[m_tiles][v_tiles][4];
  using KeyRanges = KeyTiles<int, cfg.bounded>;
  using RowScales = RowScalesOf<cfg.row_scales || layout.rescales_q, m_tiles>;
  static constexpr int stage_bytes = KTile::bytes + VTile::bytes;

  static constexpr bool has_codes = is_code(cfg.q) || is_code(cfg.k) || is_code(cfg.v);

  // Whether products of a step's weights with V are summed by themselves before they join the output.
  static constexpr bool apart = cfg.f16_accumulate || cfg.value_scales > 0 || cfg.flush_keys > 0;

  const AttentionParams& p;
  const TileOrder& order;
  BlockRows at;
  index_t offset = 0;
  Band band;
  int first_step = 0, steps = 0;  // of the block: key steps from first_step on
  KvView k_view{p.k}, v_view{p.v};
  float scale = 1.0f;  // of logits that are not folded

  AttentionSm80(const Sm80Params& params, unsigned smem_address, unsigned thread_index)
      : p(params.attention), order(params.order) {
    at.thread = static_cast<int>(thread_index), at.lane = at.thread % 32;
    at.warp_m = at.thread / 32 % cfg.warps_m, at.warp_k = at.thread / 32 / cfg.warps_m;
    at.smem = smem_address;
  }

  // Returns whether the tile needs another pass.
  bool run(Pass pass) {
    wait_for_earlier_kernels<cfg.programmatic>();
    load_first();
    if (pass == plain) let_later_kernels_start<cfg.programmatic>();  // after the loads: earlier was measured slower
    scale = whole_scale();
    Softmax softmax(has_codes ? folded_factor(scale) : scale * log2_e);
    Output o;
#pragma unroll
    for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
      for (int n = 0; n < v_tiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) o[mt][n][i] = 0.0f;
    walk(pass, softmax, o);
    cp_async_wait_group(0);
    if (steps == 0)
      __syncthreads();  // no step has waited for the rows of Q that other warps copy into this warp's tile
    if (cfg.warps_k == 1) find_tile();  // again, so that what only the end needs holds no registers during the walk
    const End end{p, at, pass};
    float finite = 0.0f;
    if constexpr (merges_output(cfg))
      finite = end.merge_rows(softmax, o);
    else
      finite = end.store_rows(softmax, o);
    if (!cfg.row_masks() || pass == count_non_finite) return false;
    const bool any = __syncthreads_or(finite != 0.0f);
    return pass == sanitised || any;
  }

  // The walk over the keys. K and V have a ring of `stages` slots, each key step one; a step's slot is free once all
  // warps are past the barrier that opens the step after it, and is loaded again right there. K and V are separate
  // groups of copies, so that the first scores need not wait for the first V.
  void walk(Pass pass, Softmax& softmax, Output& o) {
    QFragments q;
    RowScales rows;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      if (stages == 1 && step > 0) {
        __syncthreads();
        load_kv(step);
      }
      if (stages == 1)
        cp_async_wait_group(1);  // this step's K
      else
        cp_async_wait_group(step == 0 ? 2 * stages - 3 : 2 * stages - 4);  // from the second step on its V, too
      __syncthreads();
      if (stages > 1) load_kv(step + stages - 1);
      if constexpr (Queries::needs_rewriting) {
        if (step == 0) Queries::rewrite(q_smem(), row_factors(), at.thread);
      }
      if (RowScales::m_tiles > 0 && step == 0) read_row_scales(rows, softmax);
      if constexpr (cfg.q_in_registers) {
        if (step == 0) read_all_q(q);
      }
      // A warp skips the arithmetic of a step in which none of its rows sees a key; it only waits. The form of this
      // test decides spills and speed (docs/lab-notebook.md). With rescaled rows of Q it is a branch of its own. With
      // other FP8 tensors there is no test: hidden scores have weight 0.
      if (layout.rescales_q && !sees(step)) {
        open_values(pass, step);
        continue;
      }
      const bool sees_some = has_codes || sees(step);
      Scores s;
      if (sees_some) multiply_queries<cfg>(s, q, q_address(), k_address(step));
      open_values(pass, step);
      if (sees_some) add_step(pass, softmax, o, s, rows, step);
    }
  }

  void add_step(Pass pass, Softmax& softmax, Output& o, Scores& s, const RowScales& rows, int step) const {
    descale(s, step);
    modify(s, rows, step);
    pass == count_non_finite ? mark_seen(s) : softmax.step(s, o);
    if constexpr (apart) {
      ValueFactors<cfg.value_scales, m_tiles> factors;
      if (pass != count_non_finite)
        factors.weigh(s, KeyScales<cfg.value_scales>(p.v_scale, at, band.seqlen_k, first_key(step)));
      multiply_weights_apart<cfg>(o, s, factors, v_address(step));
    } else {
      multiply_weights<cfg>(o, s, v_address(step));
    }
  }

  // Waits until V's tile of a step may be read.
  void open_values(Pass pass, int step) const {
    if (step == 0 || stages == 1) {
      cp_async_wait_group(2 * stages - 2);
      __syncthreads();
    }
    if (pass != plain) rewrite_values<cfg, VTile>(pass, v_smem(step), at.thread);
  }

  void load_first() const {
    load_q();  // in the group of the first keys
#pragma unroll 1
    for (int step = 0; step < stages - 1 || step == 0; ++step) load_kv(step);
  }

  // Where keys are dealt to several warps, few blocks hurry: their grid is (row tiles, heads, batch), without
  // divisions.
  TileOrder::Place place_of_block() const {
    if constexpr (cfg.warps_k > 1)
      return {blockIdx.z, blockIdx.y, gridDim.x - 1 - blockIdx.x};
    else
      return order.place(volatile_copy(blockIdx.x));
  }

  bool find_tile() {
    const TileOrder::Place place = place_of_block();
    at.batch = static_cast<int>(place.batch), at.head = static_cast<int>(place.head);
    at.first_row = static_cast<int>(place.tile) * cfg.block_m;
    const Sequence sequence = sequence_of(p, at.batch);
    at.seqlen_q = static_cast<int>(sequence.seqlen_q), at.first_q = sequence.first_q, offset = sequence.offset;
    if (at.first_row >= at.seqlen_q) return false;
    band = Band::of(p.position_mask, sequence.offset, sequence.seqlen_k);
    const int past_rows = at.first_row + cfg.block_m, end_row = at.seqlen_q < past_rows ? at.seqlen_q : past_rows;
    const KeyRanges tiles = keys_of_rows(at.first_row, end_row - 1);
    first_step = tiles.first(step_keys), steps = tiles.count(step_keys);
    const unsigned head_k = order.group.quotient(place.head);
    at.head_k = static_cast<int>(head_k);
    k_view.rows = KvView(p.k, bytes_of(cfg.k), at.batch, head_k, sequence.first_k).rows;
    v_view.rows = KvView(p.v, bytes_of(cfg.v), at.batch, head_k, sequence.first_k).rows;
    at.first_k = sequence.first_k;
    return true;
  }

  // Rows of the block that seqused_q leaves unused.
  void clear_unused() const {
    const TileOrder::Place place = place_of_block();
    const Sequence sequence = sequence_of(p, place.batch);
    const index_t tile = static_cast<index_t>(place.tile) * cfg.block_m;
    const index_t first = tile > sequence.seqlen_q ? tile : sequence.seqlen_q;
    const index_t past = clamped(tile + cfg.block_m, 0, sequence.rows_q);
    constexpr int words = bytes_of(cfg.out) * cfg.head_dim_v / 16;
    const UnusedRows rows{place.batch, place.head, sequence.first_q, first, past, 0, words, 1};
    clear_unused_rows<Bytes16, threads>(p, rows, true);
  }

  // The keys of the rows from `first` to `last`, both included.
  KeyRanges keys_of_rows(int first, int last) const {
    if constexpr (!cfg.bounded) return KeyRanges::of_rows({0, band.seqlen_k}, {0, band.seqlen_k});
    return KeyRanges::of_rows({band.first(first), band.past(first)}, {band.first(last), band.past(last)});
  }
  // Those of the warp's rows. Computed anew for each step: they would hold registers.
  KeyRanges keys_of_warp() const {
    const int row = cfg.bounded ? first_row_now() : 0;
    return keys_of_rows(row, row + warp_rows - 1);
  }

  // The softmax scale times the descales that serve the whole head.
  float whole_scale() const {
    float factor = p.scale;
    if (is_code(cfg.q) && !cfg.row_scales && p.q_scale.present()) factor *= *p.q_scale.at(at.batch, at.head, 0, 0);
    if (is_code(cfg.k) && cfg.key_scales == 0 && p.k_scale.present())
      factor *= *p.k_scale.at(at.batch, at.head_k, 0, 0);
    return factor;
  }
  // c of folded logits, which must be positive and normal. Products of codes are so small that below that every weight
  // is 1, as it is for a c of 0. Descales that are negative or NaN are no descales, and show.
  static float folded_factor(float whole) {
    const float c = whole * log2_e;
    return c >= 0.0f ? fminf(fmaxf(c, smallest_normal), largest_finite) : minus_infinity - minus_infinity;
  }

  // The lane, but the compiler cannot compute with it before the loop and hold what it gets in registers.
  int lane_now() const { return static_cast<int>(volatile_copy(static_cast<unsigned>(at.lane))); }
  int first_row_now() const {
    return static_cast<int>(volatile_copy(static_cast<unsigned>(at.first_row + at.warp_m * warp_rows)));
  }
  int first_key(int step) const { return (first_step + step) * step_keys + at.warp_k * cfg.block_n; }  // of the warp

  unsigned q_smem() const { return at.smem; }
  unsigned row_factors() const { return at.smem + QTile::bytes + stages * stage_bytes; }
  unsigned k_smem(int step) const { return at.smem + QTile::bytes + step % stages * stage_bytes; }
  unsigned v_smem(int step) const { return k_smem(step) + KTile::bytes; }

  // One group of copies each, empty past the last step, so that groups can be counted.
  template <class Tile, int live, int size>  // `live` elements of `size` bytes in a row
  void load(int step, unsigned to, const KvView& view) const {
    const index_t key = static_cast<index_t>(first_step + step) * step_keys;
    if (step < steps)
      copy_tile<Tile, live * size, threads>(to, view.rows + size * view.row(key), size * view.pitch(),
                                            band.seqlen_k - key, at.thread);
    cp_async_commit_group();
  }
  void load_kv(int step) const {
    load<KTile, cfg.head_dim, bytes_of(cfg.k)>(step, k_smem(step), k_view);
    load<VTile, cfg.head_dim_v, bytes_of(cfg.v)>(step, v_smem(step), v_view);
  }
  void load_q() const {
    constexpr int size = bytes_of(cfg.q);
    const char* rows =
        static_cast<const char*>(p.q.data) + size * p.q.index(at.batch, at.head, at.first_q + at.first_row);
    const index_t count = at.seqlen_q - at.first_row;
    if constexpr (layout.widens_q)
      copy_tile<typename Queries::Codes, cfg.head_dim, threads>(q_smem() + Queries::codes_at, rows, p.q.row, count,
                                                                at.thread);
    else
      copy_tile<QTile, size * cfg.head_dim, threads>(q_smem(), rows, size * p.q.row, count, at.thread);
  }

  // Where the lane reads fragments: 16 rows of Q or keys of K by 32 bytes, keys of V (transposed).
  TileAddress<QTile> q_address() const {
    const int l = lane_now();
    return {q_smem(), at.warp_m * warp_rows + l % 16, l / 16};
  }
  TileAddress<KTile> k_address(int step) const {
    const int l = lane_now();
    return {k_smem(step), at.warp_k * cfg.block_n + Keys::row_of(l), Keys::chunk_of(l)};
  }
  TileAddress<VTile> v_address(int step) const {
    const int l = lane_now();
    return {v_smem(step), at.warp_k * cfg.block_n + Values::row_of(l), Values::chunk_of(l)};
  }

  void read_all_q(QFragments& q) const {
    const TileAddress<QTile> rows = q_address();
#pragma unroll
    for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
      for (int kk = 0; kk < q_steps; ++kk) ldmatrix_x4(q[mt][kk], rows.at(mt * 16, 2 * kk));
  }

  // Factors of single rows, once for the walk: descales (token, block64, block128), powers of two of rewritten rows.
  void read_row_scales(RowScales& rows, Softmax& softmax) const {
    const int row0 = at.warp_m * warp_rows + lane_now() / 4;
#pragma unroll
    for (int mt = 0; mt < RowScales::m_tiles; ++mt)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = row0 + mt * 16 + 8 * half;
        float factor = layout.rescales_q ? detail::float_of(load_shared(row_factors() + 4 * row)) : 1.0f;
        if (cfg.row_scales && at.first_row + row < at.seqlen_q)
          factor *= *p.q_scale.at(at.batch, at.head, at.first_q, at.first_row + row);
        if constexpr (cfg.folded)
          softmax.row_factor[mt][half] = folded_factor(scale * factor);
        else
          rows.factor[mt][half] = factor;
      }
  }

  // K's descales that differ from key to key.
  void descale(Scores& s, int step) const {
    if constexpr (cfg.key_scales > 0) {
      const KeyScales<cfg.key_scales> keys(p.k_scale, at, band.seqlen_k, first_key(step));
#pragma unroll
      for (int n = 0; n < n_tiles; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float key = keys.of(n * 8 + i);
#pragma unroll
          for (int mt = 0; mt < m_tiles; ++mt) s[mt][n][i] *= key, s[mt][n][2 + i] *= key;
        }
    }
  }

  // Hides what a row does not see, and turns products into logits where they are not folded.
  void modify(Scores& s, const RowScales& rows, int step) const {
    const int l = lane_now(), row0 = first_row_now() + l / 4, key0 = first_key(step);
    if (cfg.folded && !keys_of_warp().needs_mask(key0, key0 + cfg.block_n)) return;
#pragma unroll
    for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = row0 + mt * 16 + 8 * half, live_row = row < at.seqlen_q ? row : at.first_row;
        const int begin = (cfg.bounded ? band.first(row) : 0) - key0,
                  end = (cfg.bounded ? band.past(row) : band.seqlen_k) - key0;
        const RowSteps<cfg, FastTanh> logits(p, scale * rows.of(mt, half), 0.0f, offset, at.batch, at.head, live_row);
#pragma unroll
        for (int n = 0; n < n_tiles; ++n)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float& x = s[mt][n][2 * half + i];
            const int j = n * 8 + l % 4 * 2 + i;
            const bool visible = j < end && (!cfg.bounded || j >= begin);
            if constexpr (cfg.folded)
              x = visible ? x : minus_infinity;
            else
              x = visible ? logits.of(x, key0 + j) : minus_infinity;
          }
      }
  }

  // Whether any row of the warp sees any of the warp's keys of a step; otherwise the step is only waited for.
  bool sees(int step) const {
    const int key0 = first_key(step);
    return keys_of_warp().visits(key0, key0 + cfg.block_n);
  }
};

template <Sm80Config cfg>
void attention_sm80(const Sm80Params& p) {
  using Block = AttentionSm80<cfg>;
  extern __shared__ __align__(1024) char shared[];
  const AttentionParams& a = p.attention;
  const bool reads_lists = a.cu_seqlens_q.present() || a.seqused_q.present() || a.seqused_k.present() ||
                           a.q_starts.present() || a.k_starts.present();
  if (cfg.programmatic && reads_lists) wait_for_earlier_kernels<cfg.programmatic>();
  if (a.seqused_q.present()) Block(p, 0, threadIdx.x).clear_unused();
  bool again = true;
#pragma unroll 1
  for (int pass = plain; again; ++pass) {
    // Read anew in each pass: what the compiler could carry over from one to the next would cost registers in all.
    Block block(p, shared_address(shared), volatile_copy(threadIdx.x));
    again = block.find_tile() && block.run(static_cast<Pass>(pass));
  }
}

}  // namespace rapt
