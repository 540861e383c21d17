// WideAttention: attention_sm80 for head dims above 256, 16-bit tensors. Included by attention_sm80.cuh. Device only.
// Two things differ from smaller head dims, because a warp has no registers for 16 rows of the whole output:
// - The warps_n warps of a row group share the scores. Each computes the scores of block_n keys and writes their
//   weights to shared memory. Then it computes P.V of all keys of the block, for its own columns of the output. So the
//   scores are computed once, and a warp needs registers for few columns. If there are few row tiles, the columns are
//   also divided among CTAs (slices). Each slice computes the scores again.
// - K and V of a block do not fit into shared memory as a whole. They arrive in pieces: K in pieces of k_piece
//   channels, V in pieces of v_piece keys. The pieces go through a ring of `stages` buffers.
#pragma once

namespace rapt {

template <const Sm80Config& cfg>
struct WideAttention : AttentionSm80<cfg> {
  using Base = AttentionSm80<cfg>;
  using Base::p, Base::cta, Base::scale, Base::band, Base::n_blocks, Base::first_n_block, Base::k_view, Base::v_view;
  using typename Base::KFrag, typename Base::VFrag, typename Base::SFragment, typename Base::Softmax,
      typename Base::QTile, typename Base::CtaEpilogue;
  static constexpr Sm80WideLayout wide{cfg};
  static constexpr int m_tiles = Base::m_tiles, n_tiles = Base::n_tiles, cta_block_n = Base::cta_block_n,
                       threads = Base::threads, stages = cfg.stages, pieces = wide.k_pieces + wide.v_pieces;
  // The columns of the output in pairs of n-tiles (16 columns). Pair i of warp n is pair i * warps_n + n of the CTA.
  static constexpr int pairs = wide.columns / 16 / cfg.warps_n;
  using KPiece = SmemTile<cta_block_n, 2 * cfg.k_piece>;
  using VPiece = SmemTile<cfg.v_piece, 2 * wide.columns>;
  using PTile = SmemTile<cfg.block_m, 2 * cta_block_n>;
  using OutTile = SmemTile<cfg.block_m, 2 * wide.columns>;
  using OFragment = float[m_tiles][2 * pairs][4];
  using RowValues = float[m_tiles][2];
  static_assert(is_16bit(cfg.q) && is_16bit(cfg.k) && is_16bit(cfg.v) && !cfg.f16_accumulate && !cfg.q_in_registers,
                "wide head dims: 16-bit tensors, f32 sums, Q in shared memory");
  static_assert(!cfg.v_in_k || (wide.k_pieces == 1 && wide.slices == 1), "V is read from a whole block of K");
  static_assert(stages > 1 && cfg.k_piece % 16 == 0 && cfg.v_piece % 16 == 0 && cta_block_n % cfg.v_piece == 0,
                "pieces are whole mma steps, and one buffer is filled while another is read");
  static_assert((cfg.warps_n & (cfg.warps_n - 1)) == 0, "LdmatrixAddress: the chunks of a warp differ in single bits");

  unsigned reading = 0, filling = 0;  // addresses of buffers in the ring

  WideAttention(const Sm80Params& params, unsigned smem_address, unsigned thread_index)
      : Base(params, smem_address, thread_index) {}

  static int slice() { return wide.slices == 1 ? 0 : static_cast<int>(volatile_copy(blockIdx.x) % wide.slices); }
  // The columns of the output that the CTA stores.
  static int live_columns() {
    if constexpr (cfg.head_dim_v % wide.columns == 0) return wide.columns;
    const int rest = cfg.head_dim_v - slice() * wide.columns;
    return rest < wide.columns ? rest : wide.columns;
  }

  // Runs one pass over the tile. Returns whether another pass is needed (NanPass).
  bool run(NanPass pass) {
    griddepcontrol_wait<cfg.programmatic>();
    prologue();
    if (pass == normal) griddepcontrol_launch_dependents<cfg.programmatic>();
    scale = uniform_scale<cfg>(p, cta);
    Softmax softmax(Base::softmax_scale_log2());
    OFragment o;
#pragma unroll
    for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
      for (int n = 0; n < 2 * pairs; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) o[mt][n][i] = 0.0f;
    mainloop(pass, softmax, o);
    RAPT_TRACE("epilogue", 0);
    cp_async_wait_group(0);
    Base::init_tile();  // computed again, so that the values need no registers during the mainloop
    const float nan_if_nonfinite = store(pass, softmax, o);
    if (!cfg.masks_differ_by_row() || pass == count_non_finite) return false;
    const bool any = __syncthreads_or(nan_if_nonfinite != 0.0f);
    return pass == zero_non_finite || any;
  }

  // The loop over blocks of keys. Each block has `pieces` steps. A step begins with a barrier. After it the step's
  // piece is in shared memory, and no warp reads the previous piece any more, so a later piece is loaded into its
  // buffer. With more than two buffers, a warp first issues the step's matrix products: they run while it issues
  // copies.
  void mainloop(NanPass pass, Softmax& softmax, OFragment& o) {
#pragma unroll 1
    for (int n_block = 0; n_block < n_blocks; ++n_block) {
      const bool visible_block = any_visible(n_block);
      SFragment s = {};
      unsigned buffer = 0;
#pragma unroll
      for (int piece = 0; piece < wide.k_pieces; ++piece) {
        RAPT_TRACE("wait K", n_block * wide.k_pieces + piece);
        buffer = next_piece();
        if (stages == 2) load_later_piece(n_block, piece);
        if (piece == 0) Base::store_rows(n_block + Base::looks_ahead);
        RAPT_TRACE("Q.K", n_block * wide.k_pieces + piece);
        if (visible_block) multiply_k(s, buffer, piece);
        if (stages > 2) load_later_piece(n_block, piece);
      }
      RAPT_TRACE("softmax", n_block);
      share_weights(pass, softmax, o, s, visible_block, n_block);
      if constexpr (cfg.v_in_k) {
        RAPT_TRACE("wait V", n_block);
        __syncthreads();  // the weights of all warps
        if (pass != normal) rewrite_v_for_pass<cfg, KPiece>(pass, buffer, cta.thread);
        RAPT_TRACE("P.V", n_block);
        if (visible_block) multiply_v<KPiece>(o, buffer, 0);
      }
#pragma unroll
      for (int piece = 0; piece < wide.v_pieces; ++piece) {
        RAPT_TRACE("wait V", n_block * wide.v_pieces + piece);
        buffer = next_piece();
        if (stages == 2) load_later_piece(n_block, wide.k_pieces + piece);
        if (pass != normal) rewrite_v_for_pass<cfg, VPiece>(pass, buffer, cta.thread);
        RAPT_TRACE("P.V", n_block * wide.v_pieces + piece);
        if (visible_block) multiply_v<VPiece>(o, buffer, piece);
        if (stages > 2) load_later_piece(n_block, wide.k_pieces + piece);
      }
    }
  }

  // S += Q.K for the channels of a piece.
  void multiply_k(SFragment& s, unsigned buffer, int piece) const {
    constexpr int steps = cfg.k_piece / 16, all_steps = Base::layout.dim / 16;
    const int l = Base::opaque_lane();
    const LdmatrixAddress<QTile> rows = Base::q_address();
    const LdmatrixAddress<KPiece> keys{buffer, cta.warp_n * cfg.block_n + KFrag::row_of(l), KFrag::chunk_of(l)};
#pragma unroll
    for (int kk = 0; kk < steps; ++kk) {
      if (piece * steps + kk >= all_steps) break;
      unsigned a[m_tiles][4];
#pragma unroll
      for (int mt = 0; mt < m_tiles; ++mt) ldmatrix_x4(a[mt], rows.at(mt * 16, 2 * (piece * steps + kk)));
      mma_qk_step<cfg>(s, a, keys, kk);
    }
  }

  // O += P.V for the keys of a piece and the warp's columns.
  template <class Piece>
  void multiply_v(OFragment& o, unsigned buffer, int piece) const {
    constexpr int steps = Piece::rows / 16;
    const int l = Base::opaque_lane();
    const LdmatrixAddress<PTile> weights{weights_smem(), cta.warp_m * Base::warp_rows + l % 16, l / 16};
    const LdmatrixAddress<Piece> values{buffer, VFrag::row_of(l), 2 * cta.warp_n + VFrag::chunk_of(l)};
#pragma unroll
    for (int kk = 0; kk < steps; ++kk) {
      unsigned a[m_tiles][4];
#pragma unroll
      for (int mt = 0; mt < m_tiles; ++mt) ldmatrix_x4(a[mt], weights.at(mt * 16, 2 * (piece * steps + kk)));
#pragma unroll
      for (int pair = 0; pair < pairs; ++pair) {
        VFrag b;
        b.load(values, kk, 2 * cfg.warps_n * pair);
#pragma unroll
        for (int i = 0; i < VFrag::tiles; ++i)
#pragma unroll
          for (int mt = 0; mt < m_tiles; ++mt)
            mma_m16n8k16<cfg.v>(o[mt][VFrag::tiles * pair + i], a[mt], b.b[i][0], b.b[i][1]);
      }
    }
  }

  // Converts the warp's scores to weights and writes them to shared memory. The next step's barrier makes them visible.
  // The warps of a row group need a common row_max, so they exchange the largest scores of their keys first.
  void share_weights(NanPass pass, Softmax& softmax, OFragment& o, SFragment& s, bool visible_block,
                     int n_block) const {
    RowValues top;
    if (visible_block) {
      typename Base::Scores::Elements elements;  // loaded late, because Q.K needs the registers
      Base::load_elements(elements, {}, n_block);
      Base::apply_score_chain_and_mask(s, elements, {}, n_block);
      if (pass == count_non_finite) {
        mark_visible(s);
      } else {
        Softmax::find_max(s, top);
#pragma unroll
        for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
          for (int half = 0; half < 2; ++half) top[mt][half] = quad_max(top[mt][half]);
        write_row_values(top);
      }
    }
    if (pass != count_non_finite) __syncthreads();
    if (!visible_block) return;
    if (pass != count_non_finite) {
      read_row_values(top, [](float x, float y) { return fmaxf(x, y); });
      softmax.update(s, o, top);
    }
    write_weights(s);
  }

  void write_weights(const SFragment& s) const {
    const int l = Base::opaque_lane();
#pragma unroll
    for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = cta.warp_m * Base::warp_rows + mt * 16 + 8 * half + l / 4;
#pragma unroll
        for (int n = 0; n < n_tiles; ++n)
          store_shared(weights_smem() + PTile::offset(row, cta.warp_n * n_tiles + n) + l % 4 * 4,
                       pack2<cfg.v>(s[mt][n][2 * half], s[mt][n][2 * half + 1]));
      }
  }

  // Values of the lane's rows, one from each of the warps that share the rows.
  unsigned row_value_smem(int warp, int mt, int half) const {
    const int row = cta.warp_m * Base::warp_rows + mt * 16 + 8 * half + Base::opaque_lane() / 4;
    return cta.smem + wide_row_values_at(cfg) + 4 * (warp * cfg.block_m + row);
  }
  void write_row_values(const RowValues& x) const {
    if (Base::opaque_lane() % 4 != 0) return;
#pragma unroll
    for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        store_shared(row_value_smem(cta.warp_n, mt, half), detail::bits_of(x[mt][half]));
  }
  // Combines the values of all warps, in the same order in every warp.
  template <class Combine>
  void read_row_values(RowValues& x, const Combine& combine) const {
#pragma unroll
    for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        x[mt][half] = detail::float_of(load_shared(row_value_smem(0, mt, half)));
#pragma unroll
        for (int warp = 1; warp < cfg.warps_n; ++warp)
          x[mt][half] = combine(x[mt][half], detail::float_of(load_shared(row_value_smem(warp, mt, half))));
      }
  }

  // Returns whether a row of the warp sees any key of the block. The warps that share rows agree.
  bool any_visible(int n_block) const {
    const int key0 = (first_n_block + n_block) * cta_block_n;
    return Base::keys_of_warp().visits(key0, key0 + cta_block_n);
  }

  unsigned weights_smem() const { return cta.smem + wide_weights_at(cfg); }
  unsigned first_buffer() const { return cta.smem + QTile::bytes; }
  unsigned after(unsigned buffer) const {
    const unsigned next = buffer + wide.piece_bytes;
    return next == cta.smem + wide_weights_at(cfg) ? first_buffer() : next;
  }

  void prologue() {
    reading = filling = first_buffer();
    Base::load_q();  // in the same cp.async group as the first piece
    Base::store_first_rows();
#pragma unroll
    for (int step = 0; step < stages - 1; ++step) load_piece(step / pieces, step % pieces);
  }

  // Waits for the step's piece and returns its buffer.
  unsigned next_piece() {
    cp_async_wait_group(stages - 2);
    __syncthreads();
    const unsigned buffer = reading;
    reading = after(buffer);
    return buffer;
  }

  // Loads the piece that comes stages - 1 steps after this one.
  void load_later_piece(int n_block, int piece) {
    RAPT_TRACE("load", n_block * pieces + piece);
    const int later = piece + stages - 1;
    load_piece(n_block + later / pieces, later % pieces);
  }

  // Loads a piece and commits it as one cp.async group. After the last block the group is empty, so that wait counts
  // stay constant.
  void load_piece(int n_block, int piece) {
    if (piece == 0) Base::look_up_rows(n_block + Base::looks_ahead);
    if (n_block < n_blocks) {
      if (piece < wide.k_pieces) {
        const int channel = piece * cfg.k_piece,
                  live = cfg.head_dim - channel < cfg.k_piece ? cfg.head_dim - channel : cfg.k_piece;
        load_rows<KPiece>(k_view, n_block, 0, channel, live);
      } else {
        load_rows<VPiece>(v_view, n_block, (piece - wide.k_pieces) * cfg.v_piece, slice() * wide.columns,
                          live_columns());
      }
    }
    cp_async_commit_group();
    filling = after(filling);
  }
  // Copies `live` channels of the keys of a piece. key: the first one, counted in the block.
  template <class Piece>
  void load_rows(const KvView& view, int n_block, int key, int channel, int live) const {
    const int position = (first_n_block + n_block) * cta_block_n + key, count = band.seqlen_k - position;
    if constexpr (cfg.paged) {
      const unsigned rows = Base::paged_rows_smem(n_block);
      copy_rows<Piece, threads>(filling, 2 * live, count, cta.thread, [&](int r) {
        return view.rows + 2 * (paged_row_offset(rows, key + r, &view == &v_view) + channel);
      });
    } else {
      copy_columns<Piece, threads>(filling, view.rows + 2 * (view.row(position) + channel), 2 * live, 2 * view.pitch(),
                                   count, cta.thread);
    }
  }

  // Adds the row sums of the warps. Contains a barrier.
  void add_row_sums(const Softmax& softmax, RowValues& sums) const {
#pragma unroll
    for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
      for (int half = 0; half < 2; ++half) sums[mt][half] = quad_sum(softmax.row_sum[mt][half]);
    write_row_values(sums);
    __syncthreads();
    read_row_values(sums, [](float x, float y) { return x + y; });
  }

  // attention_decode: writes the rows to shared memory as f32, each with row_max, row_sum and scale_log2 behind it.
  unsigned staged_row(int row) const { return cta.smem + static_cast<unsigned>(row * wide_staged_row_bytes(cfg)); }
  void stage_rows(const CtaEpilogue& epilogue, const Softmax& softmax, const OFragment& o) const {
    RowValues sums;
    add_row_sums(softmax, sums);
    __syncthreads();  // the sums have been read; the rows can take their place
#pragma unroll
    for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const unsigned to = staged_row(epilogue.row_of(mt, half) - cta.first_row);
        if (cta.warp_n == 0 && cta.lane % 4 == 0) {
          store_shared_2(to + 4 * wide.columns, softmax.row_max[mt][half], sums[mt][half]);
          store_shared_2(to + 4 * wide.columns + 8, softmax.row_scale_log2(mt, half), 0.0f);
        }
#pragma unroll
        for (int n = 0; n < 2 * pairs; ++n) {
          const ChannelPair<cfg> pair(o[mt][n / 2 * 2], o[mt][n / 2 * 2 + 1], n / 2 * cfg.warps_n + cta.warp_n, n % 2,
                                      half, cta.lane);
          store_shared_2(to + 4 * static_cast<unsigned>(pair.column), pair.x, pair.y);
        }
      }
    __syncthreads();
  }
  // As in Epilogue.
  template <class Store>
  float combine_staged(const CtaEpilogue&, const Softmax&, const Store& store) const {
    float nan_if_nonfinite = 0.0f;
    constexpr int chunks = cfg.head_dim_v / 8;
    for (int i = cta.thread; i < cfg.block_m * chunks; i += threads) {
      const int row = i / chunks, chunk = i % chunks;
      if (cta.first_row + row >= cta.seqlen_q) continue;
      typename CtaEpilogue::WarpsResult sums;
      const unsigned from = staged_row(row), stats = from + 4 * wide.columns, at = from + 32 * chunk;
      float unused;
      load_shared_4(stats, sums.row_max, sums.row_sum, sums.scale_log2, unused);
      load_shared_4(at, sums.o[0], sums.o[1], sums.o[2], sums.o[3]);
      load_shared_4(at + 16, sums.o[4], sums.o[5], sums.o[6], sums.o[7]);
      store(row, chunk, sums);
      for (int j = 0; j < 8; ++j) nan_if_nonfinite = fmaf(sums.o[j], 0.0f, nan_if_nonfinite);
    }
    return nan_if_nonfinite;
  }

  // The epilogue: adds the row sums of the warps, then stores lse and the CTA's columns. Returns 0, or NaN if a stored
  // value is not finite.
  float store(NanPass pass, const Softmax& softmax, const OFragment& o) const {
    const CtaEpilogue epilogue{p, cta, pass};
    RowValues sums;
    add_row_sums(softmax, sums);
    float nan_if_nonfinite = 0.0f;
#pragma unroll
    for (int mt = 0; mt < m_tiles; ++mt)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = epilogue.row_of(mt, half);
        const auto end =
            epilogue.finalize_row(row, softmax.row_scale_log2(mt, half), softmax.row_max[mt][half], sums[mt][half]);
        if (pass != count_non_finite && slice() == 0 && cta.warp_n == 0 && cta.lane % 4 == 0)
          epilogue.store_lse(row, end.lse);
        const float factor = pass == count_non_finite ? 1.0f : end.factor;
#pragma unroll
        for (int n = 0; n < 2 * pairs; ++n) {
          const ChannelPair<cfg> pair(o[mt][n / 2 * 2], o[mt][n / 2 * 2 + 1], n / 2 * cfg.warps_n + cta.warp_n, n % 2,
                                      half, cta.lane);
          const float x = pair.x * factor, y = pair.y * factor;
          if (row < cta.seqlen_q) nan_if_nonfinite = fmaf(x, 0.0f, fmaf(y, 0.0f, nan_if_nonfinite));
          if constexpr (is_16bit(cfg.out))
            store_shared(cta.smem + OutTile::offset(row - cta.first_row, pair.column / 8) + pair.column % 8 * 2,
                         pack2<cfg.out>(x, y));
          else if (row < cta.seqlen_q && pair.column < live_columns())
            store_f32(pass, epilogue.out_index(row) + slice() * wide.columns + pair.column, x, y);
        }
      }
    if constexpr (is_16bit(cfg.out)) store_tile(epilogue);
    return nan_if_nonfinite;
  }

  // In the third pass x and y are counts, and elements with a count above 0 become NaN.
  void store_f32(NanPass pass, index_t at, float x, float y) const {
    constexpr float nan = detail::float_of(0x7fffffffu);
    float* const to = static_cast<float*>(p.out.data) + at;
    if (pass != count_non_finite || x > 0.0f) to[0] = pass == count_non_finite ? nan : x;
    if (pass != count_non_finite || y > 0.0f) to[1] = pass == count_non_finite ? nan : y;
  }

  // Stores the 16-bit rows that all warps have written to shared memory.
  void store_tile(const CtaEpilogue& epilogue) const {
    __syncthreads();
    const int chunks = live_columns() / 8, first = slice() * wide.columns / 8;
    for (int i = cta.thread; i < cfg.block_m * chunks; i += threads) {
      const int row = i / chunks, chunk = i % chunks;
      if (cta.first_row + row < cta.seqlen_q)
        epilogue.store_chunk(cta.first_row + row, first + chunk,
                             load_shared_16(cta.smem + OutTile::offset(row, chunk)));
    }
  }
};

}  // namespace rapt
