// attention_sm80, device half: attention on 16-bit tensors with mma.sync and cp.async, for sm_80 and everything newer.
// Called by the entry that emit.cpp writes; assumes what attention_sm80.cpp accepts: unit last strides, 16-byte aligned
// rows, sequences shorter than Band::longest. The algorithm is FlashAttention-2's (Dao 2023): a thread block owns
// block_m query rows and walks the keys that any of them sees; scores never leave registers.
#pragma once

#include "prim/accumulator.cuh"
#include "prim/ptx_copy.cuh"
#include "prim/score.cuh"
#include "prim/softmax.cuh"
#include "prim/tile.cuh"
#include "shared/sm80.h"

namespace rapt {

template <AttentionConfig cfg>
struct AttentionSm80 {
  static constexpr int dim = round_up(cfg.head_dim, 16), dim_v = round_up(cfg.head_dim_v, 16);
  static constexpr int threads = cfg.threads(), step_keys = cfg.step_keys(), stages = cfg.stages;
  static constexpr int warp_rows = cfg.block_m / cfg.warps_m;
  static constexpr int m_tiles = warp_rows / 16, n_tiles = cfg.block_n / 8, v_tiles = dim_v / 8, k_steps = dim / 16;
  static_assert(warp_rows % 16 == 0 && cfg.block_n % 16 == 0, "warps take whole mma tiles");
  using QTile = SmemTile<cfg.block_m, dim>;
  using KTile = SmemTile<step_keys, dim>;
  using VTile = SmemTile<step_keys, dim_v>;
  using Softmax = OnlineSoftmax<cfg.folded, m_tiles, cfg.f16_accumulate>;
  using QFragments = unsigned[cfg.q_in_registers ? m_tiles : 1][cfg.q_in_registers ? k_steps : 1][4];
  using Scores = float[m_tiles][n_tiles][4];
  using Output = float[m_tiles][v_tiles][4];
  static constexpr int stage_bytes = KTile::bytes + VTile::bytes;

  // Passes over a row tile. The first is all there is on finite data. If it leaves a non-finite output, hidden keys may
  // have reached it (0 * NaN), so V is then read with its non-finite elements as 0, and a third pass counts, for each
  // output element, those that its row sees: they make it NaN (docs/semantics.md, "hidden is hidden").
  enum Pass : int { plain, sanitised, count_non_finite };

  const AttentionParams& p;
  const TileOrder& order;
  const int thread, lane, warp_m, warp_k;
  const unsigned smem;
  int batch = 0, head = 0, seqlen_q = 0;
  index_t first_q = 0, offset = 0;
  Band band;
  int first_row = 0, first_step = 0, steps = 0;  // of the block: rows from first_row on, key steps from first_step on
  int outer_begin = 0, outer_end = 0;            // keys that some row of the warp sees
  int inner_begin = 0, inner_end = 0;            // keys that position and length let all of them see
  const char *k_rows = nullptr, *v_rows = nullptr;

  AttentionSm80(const Sm80Params& params, unsigned smem_address, unsigned thread_index)
      : p(params.attention),
        order(params.order),
        thread(static_cast<int>(thread_index)),
        lane(static_cast<int>(thread_index % 32)),
        warp_m(static_cast<int>(thread_index / 32 % cfg.warps_m)),
        warp_k(static_cast<int>(thread_index / 32 / cfg.warps_m)),
        smem(smem_address) {}

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
    batch = static_cast<int>(place.batch), head = static_cast<int>(place.head);
    first_row = static_cast<int>(place.tile) * cfg.block_m;
    const Sequence sequence = sequence_of(p, batch);
    seqlen_q = static_cast<int>(sequence.seqlen_q), first_q = sequence.first_q, offset = sequence.offset;
    if (first_row >= seqlen_q) return false;
    band = Band::of(p.position_mask, sequence.offset, sequence.seqlen_k);
    const int end_row = seqlen_q < first_row + cfg.block_m ? seqlen_q : first_row + cfg.block_m;
    const int begin = cfg.bounded ? band.first(first_row) : 0,
              end = cfg.bounded ? band.past(end_row - 1) : band.seqlen_k;
    first_step = begin / step_keys;
    steps = end > begin ? (end + step_keys - 1) / step_keys - first_step : 0;
    set_warp_bounds();
    const unsigned head_k = order.group.quotient(place.head);
    k_rows = static_cast<const char*>(p.k.data) + 2 * p.k.index(batch, head_k, sequence.first_k);
    v_rows = static_cast<const char*>(p.v.data) + 2 * p.v.index(batch, head_k, sequence.first_k);
    return true;
  }

  void set_warp_bounds() {
    const int row = first_row + warp_m * warp_rows, last = row + warp_rows - 1;
    outer_begin = cfg.bounded ? band.first(row) : 0, outer_end = cfg.bounded ? band.past(last) : band.seqlen_k;
    inner_begin = cfg.bounded ? band.first(last) : 0, inner_end = cfg.bounded ? band.past(row) : band.seqlen_k;
  }

  // The lane, but the compiler cannot compute with it before the loop and hold what it gets in registers.
  int lane_now() const { return static_cast<int>(volatile_copy(static_cast<unsigned>(lane))); }

  // Row (of the sequence) of the accumulator elements c0, c1 (half 0) or c2, c3 (half 1) of m-tile mt.
  int row_of(int mt, int half) const { return first_row + warp_m * warp_rows + mt * 16 + lane / 4 + 8 * half; }
  unsigned q_smem() const { return smem; }
  unsigned k_smem(int step) const { return smem + QTile::bytes + step % stages * stage_bytes; }
  unsigned v_smem(int step) const { return k_smem(step) + KTile::bytes; }

  // One group of copies each, empty past the last step, so that groups can be counted.
  template <class Tile, int columns>
  void load(int step, unsigned to, const char* rows, index_t row_bytes) const {
    const index_t key = static_cast<index_t>(first_step + step) * step_keys;
    if (step < steps)
      copy_tile<Tile, columns, threads>(to, rows + key * row_bytes, row_bytes, band.seqlen_k - key, thread);
    cp_async_commit_group();
  }
  void load_kv(int step) const {
    load<KTile, cfg.head_dim>(step, k_smem(step), k_rows, 2 * p.k.row);
    load<VTile, cfg.head_dim_v>(step, v_smem(step), v_rows, 2 * p.v.row);
  }
  void load_q() const {
    const char* rows = static_cast<const char*>(p.q.data) + 2 * p.q.index(batch, head, first_q + first_row);
    copy_tile<QTile, cfg.head_dim, threads>(q_smem(), rows, 2 * p.q.row, seqlen_q - first_row, thread);
  }

  // Where the lane reads fragments of 16 x 16 elements: rows of Q, keys of K (two n-tiles), keys of V (transposed).
  TileAddress<QTile> q_address() const {
    const int l = lane_now();
    return {q_smem(), warp_m * warp_rows + l % 16, l / 16};
  }
  TileAddress<KTile> k_address(int step) const {
    const int l = lane_now();
    return {k_smem(step), warp_k * cfg.block_n + l % 8 + l / 16 * 8, l / 8 % 2};
  }
  TileAddress<VTile> v_address(int step) const {
    const int l = lane_now();
    return {v_smem(step), warp_k * cfg.block_n + l % 16, l / 16};
  }

  void read_all_q(QFragments& q) const {
    const TileAddress<QTile> rows = q_address();
#pragma unroll
    for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
      for (int kk = 0; kk < k_steps; ++kk) ldmatrix_x4(q[mt][kk], rows.at(mt * 16, kk));
  }

  // s = q k^T for the warp's keys of a step.
  void scores(Scores& s, const QFragments& q, int step) const {
    Accumulator<cfg.f16_accumulate> sum[m_tiles][n_tiles];
    const TileAddress<QTile> rows = q_address();
    const TileAddress<KTile> keys = k_address(step);
#pragma unroll
    for (int kk = 0; kk < k_steps; ++kk) {
      unsigned a[m_tiles][4];
#pragma unroll
      for (int mt = 0; mt < m_tiles; ++mt) {
        if constexpr (cfg.q_in_registers)
          for (int i = 0; i < 4; ++i) a[mt][i] = q[mt][kk][i];
        else
          ldmatrix_x4(a[mt], rows.at(mt * 16, kk));
      }
#pragma unroll
      for (int n = 0; n < n_tiles; n += 2) {
        unsigned b[4];
        ldmatrix_x4(b, keys.at(n * 8, kk));
#pragma unroll
        for (int mt = 0; mt < m_tiles; ++mt) {
          sum[mt][n].template mma<cfg.q>(a[mt], b[0], b[1]);
          sum[mt][n + 1].template mma<cfg.q>(a[mt], b[2], b[3]);
        }
      }
    }
#pragma unroll
    for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
      for (int n = 0; n < n_tiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) s[mt][n][i] = sum[mt][n].get(i);
  }

  // Hides what a row does not see, and turns products into logits where they are not folded.
  void modify(Scores& s, int step) const {
    const int l = lane_now(), row0 = first_row + warp_m * warp_rows + l / 4;
    const int key0 = (first_step + step) * step_keys + warp_k * cfg.block_n;
    const bool edge = key0 + cfg.block_n > inner_end || (cfg.bounded && key0 < inner_begin);
    if (cfg.folded && !edge) return;
#pragma unroll
    for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = row0 + mt * 16 + 8 * half, live_row = row < seqlen_q ? row : first_row;
        const int begin = (cfg.bounded ? band.first(row) : 0) - key0,
                  end = (cfg.bounded ? band.past(row) : band.seqlen_k) - key0;
        const RowScore<cfg> logit(p, offset, batch, head, live_row);
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
              x = visible ? logit(x, key0 + j) : minus_infinity;
          }
      }
  }

  // Operand fragment of p for 16 of the warp's keys: accumulator tiles are operand tiles as they lie.
  static void read_p(unsigned (&a)[4], const Scores& s, int mt, int kk) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      a[i] = pack2<cfg.v>(s[mt][2 * kk + i / 2][i % 2 * 2], s[mt][2 * kk + i / 2][i % 2 * 2 + 1]);
  }
  // o += p v for the warp's keys of a step.
  void accumulate(Output& o, const Scores& s, int step) const {
    const TileAddress<VTile> keys = v_address(step);
#pragma unroll
    for (int kk = 0; kk < n_tiles / 2; ++kk) {
      unsigned a[m_tiles][4];
#pragma unroll
      for (int mt = 0; mt < m_tiles; ++mt) read_p(a[mt], s, mt, kk);
#pragma unroll
      for (int n = 0; n < v_tiles; n += 2) {
        unsigned b[4];
        ldmatrix_x4_trans(b, keys.at(kk * 16, n / 2));
#pragma unroll
        for (int mt = 0; mt < m_tiles; ++mt) {
          mma_m16n8k16<cfg.v>(o[mt][n], a[mt], b[0], b[1]);
          mma_m16n8k16<cfg.v>(o[mt][n + 1], a[mt], b[2], b[3]);
        }
      }
    }
  }

  // The same with the products of a step summed in f16 before they join o.
  void accumulate_f16(Output& o, const Scores& s, int step) const {
    const TileAddress<VTile> keys = v_address(step);
#pragma unroll
    for (int n = 0; n < v_tiles; n += 2) {
      Accumulator<true> sum[m_tiles][2];
#pragma unroll
      for (int kk = 0; kk < n_tiles / 2; ++kk) {
        unsigned b[4];
        ldmatrix_x4_trans(b, keys.at(kk * 16, n / 2));
#pragma unroll
        for (int mt = 0; mt < m_tiles; ++mt) {
          unsigned a[4];
          read_p(a, s, mt, kk);
          sum[mt][0].template mma<cfg.v>(a, b[0], b[1]);
          sum[mt][1].template mma<cfg.v>(a, b[2], b[3]);
        }
      }
#pragma unroll
      for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
        for (int i = 0; i < 8; ++i) o[mt][n + i / 4][i % 4] += sum[mt][i / 4].get(i % 4);
    }
  }

  // Passes 1 and 2: every thread rewrites what lies in V's tile of this step, element by element.
  void rewrite_v(Pass pass, int step) const {
    constexpr unsigned exponent = cfg.v == DType::f16 ? 0x7c00u : 0x7f80u,
                       one = cfg.v == DType::f16 ? 0x3c00u : 0x3f80u;
    for (int at = thread * 4; at < VTile::bytes; at += threads * 4) {
      const unsigned pair = load_shared(v_smem(step) + static_cast<unsigned>(at));
      unsigned rewritten = 0;
      for (int shift = 0; shift < 32; shift += 16) {
        const unsigned element = pair >> shift & 0xffffu;
        const bool finite = (element & exponent) != exponent;
        rewritten |= (pass == sanitised ? (finite ? element : 0u) : (finite ? 0u : one)) << shift;
      }
      store_shared(v_smem(step) + static_cast<unsigned>(at), rewritten);
    }
    __syncthreads();
  }

  // Pass 2: 1 where the row sees the key, whatever its weight; NaN scores are seen.
  static void mark_seen(Scores& s) {
#pragma unroll
    for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
      for (int n = 0; n < n_tiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) s[mt][n][i] = s[mt][n][i] == minus_infinity ? 0.0f : 1.0f;
  }

  // Whether any row of the warp sees any of the warp's keys of a step; otherwise the step is only waited for.
  bool sees(int step) const {
    const int key0 = (first_step + step) * step_keys + warp_k * cfg.block_n;
    return key0 < outer_end && (!cfg.bounded || key0 + cfg.block_n > outer_begin);
  }

  // The walk over the keys. K and V have a ring of `stages` slots, each key step one; a step's slot is free once all
  // warps are past the barrier that opens the step after it, and is loaded again right there. K and V are separate
  // groups of copies, so that the first scores need not wait for the first V.
  void walk(Pass pass, Softmax& softmax, Output& o) {
    QFragments q;
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
      if constexpr (cfg.q_in_registers) {
        if (step == 0) read_all_q(q);
      }
      const bool sees_some = sees(step);
      Scores s;
      if (sees_some) scores(s, q, step);
      if (step == 0 || stages == 1) {
        cp_async_wait_group(2 * stages - 2);
        __syncthreads();
      }
      if (pass != plain) rewrite_v(pass, step);
      if (!sees_some) continue;
      modify(s, step);
      pass == count_non_finite ? mark_seen(s) : softmax.step(s, o);
      if constexpr (cfg.f16_accumulate)
        accumulate_f16(o, s, step);
      else
        accumulate(o, s, step);
    }
  }

  void load_first() const {
    load_q();  // in the group of the first keys
#pragma unroll 1
    for (int step = 0; step < stages - 1 || step == 0; ++step) load_kv(step);
  }

  struct RowEnd {
    float factor, lse;  // output = factor * accumulated output
  };
  // Closes a row: joins the sink, and gives empty rows 0 and -inf.
  RowEnd end_row(const Softmax& softmax, float reference, float sum) const {
    float top = softmax.natural(reference), share = 1.0f;
    if (p.sinks != nullptr) {
      const float sink = p.sinks[head * p.sinks_head], higher = fmaxf(top, sink);
      const float base = higher == minus_infinity ? 0.0f : higher;
      share = exp2_approx((top - base) * log2_e);
      sum = sum * share + exp2_approx((sink - base) * log2_e);
      top = higher;
    }
    if (sum == 0.0f) return {0.0f, minus_infinity};
    return {__fdividef(share, sum), top + log2_approx(sum) * ln_2};
  }

  void store_lse(int row, float lse) const {
    if (p.lse.present() && row < seqlen_q)
      static_cast<float*>(p.lse.data)[p.lse.index(batch, head, first_q + row)] = lse;
  }
  index_t out_index(int row) const { return p.out.index(batch, head, first_q + row); }

  // 16 bytes of 16-bit outputs, or in the third pass the counts in their place: elements that counted something become
  // NaN.
  void store_chunk(Pass pass, int row, int chunk, const Bytes16& x) const {
    unsigned short* const to = static_cast<unsigned short*>(p.out.data) + out_index(row) + chunk * 8;
    if (pass != count_non_finite) {
      *reinterpret_cast<Bytes16*>(to) = x;
      return;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (x.word[i / 2] >> i % 2 * 16 & 0xffffu) to[i] = 0x7fff;
  }

  // Where a row's keys were dealt to one warp: through its own rows of Q's tile, which nobody reads any more, so that
  // 16 bytes are stored at a time. Returns 0, or NaN if a stored value is not finite.
  float store_rows(Pass pass, Softmax& softmax, const Output& o) const {
    float finite = 0.0f;
    __syncwarp();
#pragma unroll
    for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = row_of(mt, half);
        const RowEnd end = end_row(softmax, softmax.reference[mt][half], quad_sum(softmax.sum[mt][half]));
        if (lane % 4 == 0 && pass != count_non_finite) store_lse(row, end.lse);
        const float factor = pass == count_non_finite ? 1.0f : end.factor,
                    checked = row < seqlen_q ? 0.0f : minus_infinity;
#pragma unroll
        for (int n = 0; n < v_tiles; ++n) {
          const float x = o[mt][n][2 * half] * factor, y = o[mt][n][2 * half + 1] * factor;
          if (checked == 0.0f) finite = fmaf(x, 0.0f, fmaf(y, 0.0f, finite));
          store_shared(q_smem() + QTile::offset(row - first_row, n) + lane % 4 * 4, pack2<cfg.out>(x, y));
        }
      }
    __syncwarp();
    constexpr int chunks = cfg.head_dim_v / 8;
    for (int at = lane; at < warp_rows * chunks; at += 32) {
      const int row = warp_m * warp_rows + at / chunks, chunk = at % chunks;
      if (first_row + row < seqlen_q)
        store_chunk(pass, first_row + row, chunk, load_shared_16(q_smem() + QTile::offset(row, chunk)));
    }
    return finite;
  }

  // Where they were dealt to several warps, or outputs do not fit into Q's tile: each leaves its state in shared
  // memory, all merge in the order of the keys' warps.
  float merge_rows(Pass pass, Softmax& softmax, const Output& o) const {
    constexpr int pitch = merge_pitch(cfg), part = cfg.block_m * pitch;
    const unsigned facts = smem + 4 * cfg.warps_k * part;
    __syncthreads();
#pragma unroll
    for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = row_of(mt, half) - first_row;
        const float sum = quad_sum(softmax.sum[mt][half]);
        if (lane % 4 == 0)
          store_shared_2(facts + 8 * (warp_k * cfg.block_m + row),
                         pass == count_non_finite ? 0.0f : softmax.reference[mt][half],
                         pass == count_non_finite ? 1.0f : sum);
#pragma unroll
        for (int n = 0; n < v_tiles; ++n)
          store_shared_2(smem + 4 * (warp_k * part + row * pitch + n * 8 + lane % 4 * 2), o[mt][n][2 * half],
                         o[mt][n][2 * half + 1]);
      }
    __syncthreads();
    float finite = 0.0f;
    constexpr int chunks = cfg.head_dim_v / 8;
    for (int at = thread; at < cfg.block_m * chunks; at += threads) {
      const int row = at / chunks, chunk = at % chunks;
      if (first_row + row >= seqlen_q) continue;
      float merged[8];
      merge_chunk(pass, softmax, row, chunk, facts, merged);
      for (int i = 0; i < 8; ++i) finite = fmaf(merged[i], 0.0f, finite);
      store_8(pass, first_row + row, chunk, merged);
    }
    return finite;
  }

  void store_8(Pass pass, int row, int chunk, const float (&x)[8]) const {
    if constexpr (is_16bit(cfg.out)) {
      Bytes16 packed;
#pragma unroll
      for (int i = 0; i < 4; ++i) packed.word[i] = pack2<cfg.out>(x[2 * i], x[2 * i + 1]);
      store_chunk(pass, row, chunk, packed);
    } else {
      float* const to = static_cast<float*>(p.out.data) + out_index(row) + chunk * 8;
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (pass != count_non_finite || x[i] > 0.0f)
          to[i] = pass == count_non_finite ? detail::float_of(0x7fffffffu) : x[i];
    }
  }

  // Eight channels of one row of the block, over all parts; the first chunk's thread stores the row's lse.
  void merge_chunk(Pass pass, const Softmax& softmax, int row, int chunk, unsigned facts, float (&merged)[8]) const {
    constexpr int pitch = merge_pitch(cfg), part = cfg.block_m * pitch;
    float reference[cfg.warps_k], part_sum[cfg.warps_k], top = minus_infinity, sum = 0.0f;
#pragma unroll
    for (int k = 0; k < cfg.warps_k; ++k) {
      load_shared_2(facts + 8 * (k * cfg.block_m + row), reference[k], part_sum[k]);
      top = fmaxf(top, reference[k]);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) merged[i] = 0.0f;
#pragma unroll
    for (int k = 0; k < cfg.warps_k; ++k) {
      const float factor = reference[k] == top ? 1.0f : softmax.ratio(reference[k], top);
      sum += part_sum[k] * factor;
      const unsigned from = smem + 4 * (k * part + row * pitch + chunk * 8);
      float x[8];
      load_shared_4(from, x[0], x[1], x[2], x[3]);
      load_shared_4(from + 16, x[4], x[5], x[6], x[7]);
#pragma unroll
      for (int i = 0; i < 8; ++i) merged[i] = fmaf(factor, x[i], merged[i]);
    }
    if (pass == count_non_finite) return;
    const RowEnd end = end_row(softmax, top, sum);
    if (chunk == 0) store_lse(first_row + row, end.lse);
#pragma unroll
    for (int i = 0; i < 8; ++i) merged[i] *= end.factor;
  }

  // Returns whether the tile needs another pass.
  bool run(Pass pass) {
    wait_for_earlier_kernels<cfg.programmatic>();
    load_first();
    if (pass == plain) let_later_kernels_start<cfg.programmatic>();  // after the loads: earlier was measured slower
    Softmax softmax(p.scale);
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
    float finite = 0.0f;
    if constexpr (merges_output(cfg))
      finite = merge_rows(pass, softmax, o);
    else
      finite = store_rows(pass, softmax, o);
    if (!cfg.row_masks() || pass == count_non_finite) return false;
    const bool any = __syncthreads_or(finite != 0.0f);
    return pass == sanitised || any;
  }
};

template <AttentionConfig cfg>
void attention_sm80(const Sm80Params& p) {
  using Block = AttentionSm80<cfg>;
  extern __shared__ __align__(1024) char shared[];
  const AttentionParams& a = p.attention;
  const bool reads_lists =
      a.cu_seqlens_q.present() || a.seqused_k.present() || a.q_starts.present() || a.k_starts.present();
  if (cfg.programmatic && reads_lists) wait_for_earlier_kernels<cfg.programmatic>();
  bool again = true;
#pragma unroll 1
  for (int pass = Block::plain; again; ++pass) {
    // Read anew in each pass: what the compiler could carry over from one to the next would cost registers in all.
    Block block(p, shared_address(shared), volatile_copy(threadIdx.x));
    again = block.find_tile() && block.run(static_cast<typename Block::Pass>(pass));
  }
}

}  // namespace rapt
