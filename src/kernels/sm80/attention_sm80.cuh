// attention_sm80, device code: attention on f32, 16-bit and FP8 tensors with mma.sync and cp.async, for sm_80 and
// newer. The algorithm is FlashAttention-2 (Dao 2023). A CTA owns block_m query rows and loops over the blocks of keys
// (n_block) that at least one of these rows sees. Scores never leave registers. emit_unit (config_table.cpp) generates
// the kernel entry. The kernel relies on the checks in attention_sm80.cpp: the last stride is 1, rows are 16-byte
// aligned, and sequences are shorter than Band::longest.
#pragma once

#include "descale.cuh"
#include "device/softmax.cuh"
#include "device/tile.cuh"
#include "device/trace.cuh"
#include "epilogue.cuh"
#include "mma_steps.cuh"
#include "nan_passes.cuh"
#include "paged_rows.cuh"
#include "ptx/copy.cuh"
#include "scores.cuh"
#include "shared/key_tiles.h"
#include "shared/kv_view.h"
#include "sm80.h"
#include "tf32.cuh"
#include "unused_rows.cuh"

RAPT_TRACE_STAGES("prologue|wait K|load|Q.K|wait V|softmax|P.V|epilogue|arrive|merge")

namespace rapt {

template <const Sm80Config& cfg>
struct AttentionSm80 {
  static constexpr Sm80Layout layout{cfg};
  static constexpr int threads = cfg.threads(), cta_block_n = cfg.cta_block_n(), stages = cfg.stages;
  static constexpr int warp_rows = cfg.block_m / cfg.warps_m;
  static constexpr int m_tiles = warp_rows / 16, n_tiles = cfg.block_n / 8, v_tiles = layout.dim_v / 8;
  using KFrag = KFragment<cfg>;
  using VFrag = VFragment<cfg>;
  // Number of k-steps of QK^T over head_dim, except for TF32. Each step takes 32 bytes of a row. layout.q_row, k_row,
  // v_row: bytes of a row.
  static constexpr int q_steps = layout.q_row / 32;
  static_assert(warp_rows % 16 == 0 && cfg.block_n % VFrag::keys == 0 && n_tiles % KFrag::tiles == 0,
                "warps take whole mma tiles");
  static_assert(!(cfg.scale_in_exp2 && (has_user_score || cfg.bias != DType::none || cfg.alibi)),
                "with scale_in_exp2, only masks may follow the scale or the soft cap");
  static_assert(!(cfg.softcap && cfg.key_mean),
                "softcap with key_mean is not supported: the mean would have to be added before the cap");
  static_assert(!cfg.octets || (cfg.block_n % 32 == 0 && cfg.k_descale_block != 1 && cfg.v_descale_block != 1),
                "octets permute 32 keys, but not the descales of single keys");
  static_assert(!(layout.tf32_qk && cfg.q_in_registers), "q_in_registers is not supported with TF32 products");
  using QTile = SmemTile<cfg.block_m, layout.q_row, layout.tf32_qk>;
  using KTile = SmemTile<cta_block_n, layout.k_row, layout.tf32_qk>;
  using VTile = SmemTile<cta_block_n, layout.v_row>;
  using Softmax =
      OnlineSoftmax<m_tiles, cfg.f16_accumulate || (cfg.p_terms > 0), cfg.p_terms == 0 ? 0 : 8, has_row_scales(cfg)>;
  using QRewrite = QTileRewrite<cfg, QTile>;
  using CtaEpilogue = Epilogue<cfg, Softmax>;
  using QFragments = unsigned[cfg.q_in_registers ? m_tiles : 1][cfg.q_in_registers ? q_steps : 1][4];
  using SFragment = float[m_tiles][n_tiles][4];
  using QRowScale = QRowScales<cfg.q_row_descales || layout.rescales_q, m_tiles>;
  using Rows = ScoreRows<cfg, AttentionSm80, QRowScale>;
  using Scores = ScoreTile<cfg, Rows, m_tiles, n_tiles>;
  using OFragment = float[m_tiles][v_tiles][4];
  // Two ranges of keys: the keys that some row sees, and the keys that every row sees.
  using KeyRanges = KeyTiles<int, cfg.causal_or_local>;
  static constexpr int stage_bytes = KTile::bytes + VTile::bytes;

  static constexpr bool has_fp8 = is_tensor_core_fp8(cfg.q) || is_tensor_core_fp8(cfg.k) || is_tensor_core_fp8(cfg.v);

  // Two-level accumulation: each n_block's PV is summed in its own accumulator, which is then added to the output.
  static constexpr bool two_level_accum = cfg.f16_accumulate || cfg.v_descale_block > 0 || cfg.promotion_interval > 0;

  const AttentionParams& p;
  const TileScheduler& scheduler;
  CtaTile cta;
  index_t offset = 0;
  Band band;
  int first_n_block = 0, n_blocks = 0;  // the CTA visits n_blocks blocks of cta_block_n keys
  KvView k_view{p.k}, v_view{p.v};
  // Softmax scale times the uniform descales. With scale_in_exp2, OnlineSoftmax applies this scale; otherwise the score
  // chain does.
  float scale = 1.0f;

  AttentionSm80(const Sm80Params& params, unsigned smem_address, unsigned thread_index)
      : p(params.attention), scheduler(params.scheduler) {
    cta.thread = static_cast<int>(thread_index), cta.lane = cta.thread % 32;
    cta.warp_m = cta.thread / 32 % cfg.warps_m, cta.warp_n = cta.thread / 32 / cfg.warps_m;
    cta.smem = smem_address;
  }

  static int slice() { return 0; }  // of the output's columns; WideAttention has several

  // Runs one pass over the tile. Returns whether another pass is needed (NanPass).
  bool run(NanPass pass) {
    griddepcontrol_wait<cfg.programmatic>();
    prologue();
    if (pass == normal)
      griddepcontrol_launch_dependents<cfg.programmatic>();  // after the loads: an earlier place is slower (measured)
    scale = uniform_scale<cfg>(p, cta);
    Softmax softmax(softmax_scale_log2());
    OFragment o;
#pragma unroll
    for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
      for (int n = 0; n < v_tiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) o[mt][n][i] = 0.0f;
    mainloop(pass, softmax, o);
    RAPT_TRACE("epilogue", 0);
    cp_async_wait_group(0);
    // If the loop had no iteration, there was no barrier yet. The cp.async of Q must end in every warp before the
    // epilogue reuses the shared memory.
    if (n_blocks == 0) __syncthreads();
    if (cfg.warps_n == 1) init_tile();  // computed again, so that the values need no registers during the mainloop
    const CtaEpilogue epilogue{p, cta, pass};
    float nan_if_nonfinite = 0.0f;
    if constexpr (has_f32_epilogue(cfg))
      nan_if_nonfinite = epilogue.combine_rows(softmax, o);
    else
      nan_if_nonfinite = epilogue.store_rows(softmax, o);
    if (!cfg.masks_differ_by_row() || pass == count_non_finite) return false;
    const bool any = __syncthreads_or(nan_if_nonfinite != 0.0f);
    return pass == zero_non_finite || any;
  }

  // The factor that turns the scores after the score chain into logits in base 2.
  float softmax_scale_log2() const {
    if constexpr (!cfg.scale_in_exp2) return log2_e;
    if constexpr (cfg.softcap) return p.softcap * log2_e;
    return has_fp8 ? exp2_scale(scale) : scale * log2_e;
  }

  // The loop over blocks of keys. K and V share a ring of `stages` buffers. After the barrier at the start of an
  // iteration, no warp uses the previous iteration's buffer any more. The next tile is then loaded into it. K and V are
  // separate cp.async groups, so that the first QK^T does not wait for the first V.
  void mainloop(NanPass pass, Softmax& softmax, OFragment& o) {
    QFragments q;
    QRowScale rows;
#pragma unroll 1
    for (int n_block = 0; n_block < n_blocks; ++n_block) {
      RAPT_TRACE("wait K", n_block);
      if (stages == 1 && n_block > 0) {
        __syncthreads();
        load_kv(n_block);
      }
      if (stages == 1)
        cp_async_wait_group(1);  // this block's K
      else
        cp_async_wait_group(n_block == 0 ? 2 * stages - 3 : 2 * stages - 4);  // K, and from the second block on also V
      __syncthreads();
      RAPT_TRACE("load", n_block);
      if (stages > 1) load_kv(n_block + stages - 1);
      if constexpr (QRewrite::needs_rewriting) {
        if (n_block == 0) QRewrite::rewrite(q_smem(), row_scales_smem(), cta.thread);
      }
      if (QRowScale::m_tiles > 0 && n_block == 0) load_row_scales(rows, softmax);
      if constexpr (cfg.q_in_registers) {
        if (n_block == 0) load_q_fragments(q, q_address());
      }
      // If the warp's rows see no key of the block, it can skip the arithmetic. The form of this branch affects spills
      // and speed (docs/lab-notebook.md):
      // - If bf16 Q is converted to f16 because K is FP8 (rescales_q): an early `continue`.
      // - Other configurations with FP8 tensors: nothing is skipped; masked scores get weight 0.
      // - If all tensors are 16-bit: each call is conditional.
      if (layout.rescales_q && !any_visible(n_block)) {
        store_rows(n_block + looks_ahead);
        wait_v(pass, n_block);
        continue;
      }
      const bool visible_block = has_fp8 || any_visible(n_block);
      SFragment s;
      typename Scores::Elements elements;  // of bias and mask; loaded early, because they come from global memory
      RAPT_TRACE("Q.K", n_block);
      if (visible_block) load_elements(elements, rows, n_block);
      if (visible_block) qk_products(s, q, n_block);
      store_rows(n_block + looks_ahead);
      RAPT_TRACE("wait V", n_block);
      wait_v(pass, n_block);
      if (visible_block) softmax_and_pv(pass, softmax, o, s, elements, rows, n_block);
    }
  }

  void load_elements(typename Scores::Elements& elements, const QRowScale& row_scales, int n_block) const {
    if constexpr (cfg.bias != DType::none || cfg.mask) {
      const Rows rows{*this, row_scales};
      scores_of(rows, n_block).load(elements);
    }
  }

  void softmax_and_pv(NanPass pass, Softmax& softmax, OFragment& o, SFragment& s,
                      const typename Scores::Elements& elements, const QRowScale& row_scales, int n_block) const {
    RAPT_TRACE("softmax", n_block);
    if constexpr (cfg.k_descale_block > 0)
      KvDescales<cfg.k_descale_block, cfg.paged>(p, p.k_scale, cta, band.seqlen_k, first_key(n_block)).scale_scores(s);
    if constexpr (cfg.mask) {
      if (Scores::hides_all(elements)) return;
    }
    apply_score_chain_and_mask(s, elements, row_scales, n_block);
    pass == count_non_finite ? mark_visible(s) : softmax.update(s, o);
    if constexpr (layout.tf32_pv) {
      RAPT_TRACE("P.V", n_block);
      mma_pv_tf32<cfg>(o, s, ValueAddress<cfg, VTile>(v_smem(n_block), cta.warp_n * cfg.block_n, opaque_lane()));
    } else if constexpr (two_level_accum) {
      PvScales<cfg.v_descale_block, m_tiles> scales;
      if (pass != count_non_finite)
        scales.scale_p(
            s, KvDescales<cfg.v_descale_block, cfg.paged>(p, p.v_scale, cta, band.seqlen_k, first_key(n_block)));
      RAPT_TRACE("P.V", n_block);
      mma_pv_two_level<cfg>(o, s, scales, v_address(n_block));
    } else {
      RAPT_TRACE("P.V", n_block);
      mma_pv<cfg>(o, s, v_address(n_block));
    }
  }

  void qk_products(SFragment& s, const QFragments& q, int n_block) const {
    if constexpr (layout.tf32_qk) {
      const int l = opaque_lane();
      mma_qk_tf32<cfg>(s, RowAddress<QTile, cfg.q>(q_smem(), cta.warp_m * warp_rows + l / 4, l),
                       RowAddress<KTile, cfg.k>(k_smem(n_block), cta.warp_n * cfg.block_n + l / 4, l));
    } else {
      mma_qk<cfg>(s, q, q_address(), k_address(n_block));
    }
  }

  // Waits until the block's V tile is in shared memory.
  void wait_v(NanPass pass, int n_block) const {
    if (n_block == 0 || stages == 1) {
      cp_async_wait_group(2 * stages - 2);
      __syncthreads();
    }
    if (pass != normal) rewrite_v_for_pass<cfg, VTile>(pass, v_smem(n_block), cta.thread);
  }

  void prologue() const {
    load_q();  // in the same cp.async group as the first K
    load_first_kv();
  }
  void store_first_rows() const {
    if constexpr (cfg.paged) {
      PagedRows<cfg>::template store_first<looks_ahead>(p, cta, first_key_of_block(0), past_keys(),
                                                        [&](int n_block) { return paged_rows_smem(n_block); });
      __syncthreads();
    }
  }
  void load_first_kv() const {
    store_first_rows();
#pragma unroll 1
    for (int n_block = 0; n_block < stages - 1 || n_block == 0; ++n_block) load_kv(n_block);
  }

  // If warps split the keys (has_3d_grid), the grid is (m blocks, heads, batch). This avoids integer divisions, which
  // would dominate such a short kernel.
  TileScheduler::WorkTile scheduled_tile() const {
    if constexpr (has_3d_grid(cfg))
      return {blockIdx.z, blockIdx.y, gridDim.x - 1 - blockIdx.x};
    else
      return scheduler.work_tile(volatile_copy(blockIdx.x) / slices_of(cfg));
  }

  bool init_tile() {
    const TileScheduler::WorkTile work = scheduled_tile();
    cta.batch = static_cast<int>(work.batch), cta.head = static_cast<int>(work.head);
    cta.first_row = static_cast<int>(work.m_block) * cfg.block_m;
    const Sequence sequence = sequence_of(p, cta.batch);
    cta.seqlen_q = static_cast<int>(sequence.seqlen_q), cta.first_q = sequence.first_q, offset = sequence.offset;
    if (cta.first_row >= cta.seqlen_q) return false;
    band = Band::of(p.position_mask, sequence.offset, sequence.seqlen_k);
    const int past_rows = cta.first_row + cfg.block_m, end_row = cta.seqlen_q < past_rows ? cta.seqlen_q : past_rows;
    const KeyRanges tiles = keys_of_rows(cta.first_row, end_row - 1);
    first_n_block = tiles.first(cta_block_n), n_blocks = tiles.count(cta_block_n);
    const unsigned head_k = scheduler.group.quotient(work.head);
    cta.head_k = static_cast<int>(head_k);
    k_view.rows = KvView(p, p.k, bytes_of(cfg.k), cta.batch, head_k, sequence.first_k).rows;
    v_view.rows = KvView(p, p.v, bytes_of(cfg.v), cta.batch, head_k, sequence.first_k).rows;
    cta.first_k = sequence.first_k;
    return true;
  }

  // Returns the ranges of keys that rows `first` to `last` (inclusive) see.
  KeyRanges keys_of_rows(int first, int last) const {
    if constexpr (!cfg.causal_or_local) return KeyRanges::of_rows({0, band.seqlen_k}, {0, band.seqlen_k});
    first = query_of<cfg>(p, first), last = query_of<cfg>(p, last);
    return KeyRanges::of_rows({band.first(first), band.past(first)}, {band.first(last), band.past(last)});
  }
  // Returns the ranges of keys that the warp's rows see. They are computed again for each block, to save registers.
  KeyRanges keys_of_warp() const {
    const int row = cfg.causal_or_local ? opaque_first_row() : 0;
    return keys_of_rows(row, row + warp_rows - 1);
  }

  // Returns the lane index through volatile_copy. Without volatile_copy the compiler would move address arithmetic out
  // of the loop, which costs registers.
  int opaque_lane() const { return static_cast<int>(volatile_copy(static_cast<unsigned>(cta.lane))); }
  int opaque_first_row() const {
    return static_cast<int>(volatile_copy(static_cast<unsigned>(cta.first_row + cta.warp_m * warp_rows)));
  }
  // Returns the first of this warp's keys in the block.
  int first_key(int n_block) const { return first_key_of_block(n_block) + cta.warp_n * cfg.block_n; }
  int first_key_of_block(int n_block) const { return (first_n_block + n_block) * cta_block_n; }

  unsigned q_smem() const { return cta.smem; }
  unsigned row_scales_smem() const { return cta.smem + QTile::bytes + stages * stage_bytes; }
  unsigned k_smem(int n_block) const { return cta.smem + QTile::bytes + n_block % stages * stage_bytes; }
  unsigned v_smem(int n_block) const { return k_smem(n_block) + KTile::bytes; }
  unsigned paged_rows_smem(int n_block) const {
    return cta.smem + paged_rows_at(cfg) + n_block % page_lists(cfg) * paged_rows_bytes(cfg);
  }
  unsigned page_entries_smem(int n_block) const { return paged_rows_smem(n_block) + 16 * cta_block_n; }

  // Loads a tile and commits it as one cp.async group. After the last block the group is empty, so that wait counts
  // stay constant.
  template <class Tile, int live, int size>  // a row has `live` elements of `size` bytes
  void load(int n_block, unsigned to, const KvView& view) const {
    const int key = first_key_of_block(n_block), count = band.seqlen_k - key;
    if (n_block >= n_blocks) {
      // Nothing is left to load.
    } else if constexpr (cfg.paged) {
      copy_rows<Tile, threads, cfg.octets>(to, live * size, count, cta.thread, [&](int r) {
        return view.rows + size * paged_row_offset(paged_rows_smem(n_block), r, &view == &v_view);
      });
    } else {
      copy_tile<Tile, live * size, threads, cfg.octets>(to, view.rows + size * view.row(key), size * view.pitch(),
                                                        count, cta.thread);
    }
    cp_async_commit_group();
  }
  void load_kv(int n_block) const {
    look_up_rows(n_block + looks_ahead);
    load<KTile, cfg.head_dim, bytes_of(cfg.k)>(n_block, k_smem(n_block), k_view);
    load<VTile, cfg.head_dim_v, bytes_of(cfg.v)>(n_block, v_smem(n_block), v_view);
  }
  // Paged K and V. The entries for block n + looks_ahead are copied together with K of block n. In iteration n they
  // have arrived, and the offsets of the block's rows are computed. They are used after the next barrier.
  static constexpr int looks_ahead = page_look_ahead(cfg);
  void look_up_rows(int n_block) const {
    if constexpr (cfg.paged)
      PagedRows<cfg>::look_up(p, cta, first_key_of_block(n_block), past_keys(), page_entries_smem(n_block));
  }
  void store_rows(int n_block) const {
    if constexpr (cfg.paged)
      PagedRows<cfg>::store(p, cta, first_key_of_block(n_block), page_entries_smem(n_block), paged_rows_smem(n_block));
  }
  // The end of the keys that the CTA loads.
  int past_keys() const {
    const int past = first_key_of_block(n_blocks);
    return band.seqlen_k < past ? band.seqlen_k : past;
  }
  void load_q() const {
    if constexpr (layout.widens_q)
      load_q_tile<typename QRewrite::Codes>(q_smem() + QRewrite::codes_at);
    else
      load_q_tile<QTile>(q_smem());
  }
  template <class Tile>
  void load_q_tile(unsigned to) const {
    constexpr int size = bytes_of(cfg.q);
    const int count = cta.seqlen_q - cta.first_row;
    const auto address_of = [&](int row) {
      return static_cast<const char*>(p.q.data) +
             size * p.q.index(cta.batch, head_of<cfg>(p, cta, row), cta.first_q + query_of<cfg>(p, row));
    };
    if constexpr (cfg.packs_heads)
      copy_rows<Tile, threads>(to, size * cfg.head_dim, count, cta.thread,
                               [&](int r) { return address_of(cta.first_row + r); });
    else
      copy_tile<Tile, size * cfg.head_dim, threads>(to, address_of(cta.first_row), size * p.q.row, count, cta.thread);
  }

  // attention_decode: writes the results of the warps to shared memory, and combines them (Epilogue).
  static void stage_rows(const CtaEpilogue& epilogue, const Softmax& softmax, const OFragment& o) {
    epilogue.stage_rows(softmax, o);
  }
  template <class Store>
  static float combine_staged(const CtaEpilogue& epilogue, const Softmax& softmax, const Store& store) {
    return epilogue.combine_staged(softmax, store);
  }

  // The next three functions return the ldmatrix addresses of this lane. Q: 16 rows by 32 bytes. K: 16 keys by 32
  // bytes. V is loaded transposed.
  LdmatrixAddress<QTile> q_address() const {
    const int l = opaque_lane();
    return {q_smem(), cta.warp_m * warp_rows + l % 16, l / 16};
  }
  LdmatrixAddress<KTile> k_address(int n_block) const {
    const int l = opaque_lane();
    return {k_smem(n_block), cta.warp_n * cfg.block_n + KFrag::row_of(l), KFrag::chunk_of(l)};
  }
  LdmatrixAddress<VTile> v_address(int n_block) const {
    const int l = opaque_lane();
    return {v_smem(n_block), cta.warp_n * cfg.block_n + VFrag::row_of(l), VFrag::chunk_of(l)};
  }

  // Loads the scales of each row, once per tile. These are the descales of Q (token, block64, block128), and the powers
  // of two by which rows of bf16 Q were scaled before the conversion to f16.
  void load_row_scales(QRowScale& rows, Softmax& softmax) const {
    const int row0 = cta.warp_m * warp_rows + opaque_lane() / 4;
#pragma unroll
    for (int mt = 0; mt < QRowScale::m_tiles; ++mt)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = row0 + mt * 16 + 8 * half;
        float factor = layout.rescales_q ? detail::float_of(load_shared(row_scales_smem() + 4 * row)) : 1.0f;
        if (cfg.q_row_descales && cta.first_row + row < cta.seqlen_q)
          factor *= *p.q_scale.at(cta.batch, head_of<cfg>(p, cta, cta.first_row + row), cta.first_q,
                                  query_of<cfg>(p, cta.first_row + row));
        if constexpr (cfg.scale_in_exp2)
          softmax.row_scale[mt][half] = exp2_scale(scale * factor);
        else
          rows.scale[mt][half] = factor;
      }
  }

  // The scores that this thread holds for the keys of a block.
  Scores scores_of(const Rows& rows, int n_block) const {
    return {p, rows, first_key(n_block) + Scores::Keys::first(opaque_lane())};
  }

  // Turns the products q.k into logits, or into scores that the softmax scales.
  void apply_score_chain_and_mask(SFragment& s, const typename Scores::Elements& elements, const QRowScale& row_scales,
                                  int n_block) const {
    if constexpr (Scores::used) {
      const Rows rows{*this, row_scales};
      apply_score_chain(scores_of(rows, n_block), s, elements);
    }
    apply_position_mask(s, n_block);
  }

  // Sets scores of keys that a row does not see to -inf. Most blocks have no such scores.
  void apply_position_mask(SFragment& s, int n_block) const {
    const int key0 = first_key(n_block);
    if (!keys_of_warp().needs_mask(key0, key0 + cfg.block_n)) return;
    const int l = opaque_lane(), row0 = opaque_first_row() + l / 4;
#pragma unroll
    for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = query_of<cfg>(p, row0 + mt * 16 + 8 * half);
        const int begin = (cfg.causal_or_local ? band.first(row) : 0) - key0,
                  end = (cfg.causal_or_local ? band.past(row) : band.seqlen_k) - key0;
#pragma unroll
        for (int n = 0; n < n_tiles; ++n)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float& x = s[mt][n][2 * half + i];
            const int j = Scores::Keys::distance(n) + Scores::Keys::first(l) + i;
            const bool visible = j < end && (!cfg.causal_or_local || j >= begin);
            x = visible ? x : minus_infinity;
          }
      }
  }

  // Returns whether any row of the warp sees any of the warp's keys in the block.
  bool any_visible(int n_block) const {
    const int key0 = first_key(n_block);
    return keys_of_warp().visits(key0, key0 + cfg.block_n);
  }
};

}  // namespace rapt

#include "wide_attention.cuh"

namespace rapt {

template <const Sm80Config& cfg, bool wide = cfg.wide()>
struct CtaOf {
  using Type = AttentionSm80<cfg>;
};
template <const Sm80Config& cfg>
struct CtaOf<cfg, true> {
  using Type = WideAttention<cfg>;
};

template <const Sm80Config& cfg>
void attention_sm80(const Sm80Params& p) {
  using Cta = typename CtaOf<cfg>::Type;
  RAPT_TRACE_BEGIN("prologue");
  extern __shared__ __align__(1024) char shared[];
  const AttentionParams& a = p.attention;
  if (cfg.programmatic && a.has_lists()) griddepcontrol_wait<cfg.programmatic>();
  if (a.seqused_q.present() && Cta::slice() == 0) clear_unused_rows<cfg>(a, Cta(p, 0, threadIdx.x).scheduled_tile());
  bool again = true;
#pragma unroll 1
  for (int pass = normal; again; ++pass) {
    // Each pass computes everything again, because values that are kept across passes would cost registers in all
    // passes.
    Cta cta(p, shared_address(shared), volatile_copy(threadIdx.x));
    again = cta.init_tile() && cta.run(static_cast<NanPass>(pass));
  }
  RAPT_TRACE_END();
}

}  // namespace rapt
