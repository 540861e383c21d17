// attention_decode: few query rows against many keys. The loop over keys is that of attention_sm80. Three things
// differ:
// - The rows of all query heads of a KV head share a tile (packed_heads), so K and V are read once.
// - The keys of a tile are divided among CTAs (BlockLine in decode.h). The division is computed on the GPU from the
//   lengths, so it is balanced even if one sequence is much longer than the others.
// - If several CTAs compute a tile, each writes a partial state. The last one to arrive merges them in the order of the
//   keys, so the result does not depend on the order of arrival (Flash-Decoding, with the merge in the same kernel).
// Device only.
#pragma once

#include "attention_sm80.cuh"
#include "decode.h"

namespace rapt {

// A tile of query rows, and the part of its blocks of keys that a CTA computes.
struct DecodeWork {
  int batch = 0, head_k = 0, row_tile = 0;
  unsigned first_block = 0;  // the number of the tile's first block in the line of all blocks
  int blocks = 0;            // of the tile
  int from = 0, count = 0;   // the CTA's blocks, counted in the tile
};

template <const Sm80Config& cfg>
struct DecodeAttention : AttentionSm80<cfg> {
  using Base = AttentionSm80<cfg>;
  using Base::p, Base::cta, Base::scale, Base::band, Base::offset, Base::n_blocks, Base::first_n_block, Base::k_view,
      Base::v_view;
  using typename Base::Softmax, typename Base::OFragment, typename Base::KeyRanges, typename Base::CtaEpilogue;
  static constexpr int threads = cfg.threads(), heads = cfg.packed_heads, chunks = cfg.head_dim_v / 8;
  static_assert(cfg.warps_n > 1 && !cfg.wide(), "warps share the keys of a block");

  const DecodeParams& params;

  DecodeAttention(const DecodeParams& all, unsigned smem_address, unsigned thread_index)
      : Base(all.sm80, smem_address, thread_index), params(all) {}

  // Runs one pass over the CTA's part of a tile. Returns whether another pass is needed (NanPass).
  bool run(const DecodeWork& work, const TileParts& parts, unsigned slot, NanPass pass) {
    begin_tile(work);
    load_packed_q();
#pragma unroll 1
    for (int n_block = 0; n_block < cfg.stages - 1 || n_block == 0; ++n_block) Base::load_kv(n_block);
    scale = uniform_scale<cfg>(p, cta);
    Softmax softmax(Base::softmax_scale_log2());
    OFragment o = {};
    Base::mainloop(pass, softmax, o);
    cp_async_wait_group(0);
    const CtaEpilogue epilogue{p, cta, pass};
    epilogue.stage_rows(softmax, o);
    const float v_scale = epilogue.v_descale();
    const float nan_if_nonfinite = epilogue.combine_staged(softmax, [&](int row, int chunk, auto& sums) {
      if (parts.count > 1) {
        store_part(slot, row, chunk, sums, pass);
        return;
      }
      if (pass != count_non_finite) epilogue.finish_chunk(row, chunk, v_scale, sums);
      epilogue.store_8(cta.first_row + row, chunk, sums.o);
    });
    if (!cfg.masks_differ_by_row() || pass == count_non_finite) return false;
    const bool any = __syncthreads_or(nan_if_nonfinite != 0.0f);
    return pass == zero_non_finite || any;
  }

  // Sets the members that describe the tile and the CTA's keys.
  void begin_tile(const DecodeWork& work) {
    const Sequence sequence = sequence_of(p, work.batch);
    cta.batch = work.batch, cta.head_k = work.head_k, cta.head = work.head_k * heads;
    cta.first_row = work.row_tile * cfg.block_m, cta.seqlen_q = static_cast<int>(sequence.seqlen_q) * heads;
    cta.first_q = sequence.first_q, cta.first_k = sequence.first_k, offset = sequence.offset;
    band = Band::of(p.position_mask, sequence.offset, sequence.seqlen_k);
    const KeyRanges keys = keys_of_tile(work.row_tile);
    first_n_block = keys.first(Base::cta_block_n) + work.from;
    n_blocks = keys.empty() ? 0 : work.count;
    k_view.rows = KvView(p, p.k, bytes_of(cfg.k), cta.batch, cta.head_k, sequence.first_k).rows;
    v_view.rows = KvView(p, p.v, bytes_of(cfg.v), cta.batch, cta.head_k, sequence.first_k).rows;
  }
  KeyRanges keys_of_tile(int row_tile) const {
    const int first = row_tile * cfg.block_m, past = first + cfg.block_m;
    return Base::keys_of_rows(first, (cta.seqlen_q < past ? cta.seqlen_q : past) - 1);
  }

  // Row r of the tile is query r / heads of head r % heads.
  void load_packed_q() const {
    constexpr int size = bytes_of(cfg.q);
    const auto address_of = [&](int r) {
      const int row = cta.first_row + r;
      return static_cast<const char*>(p.q.data) +
             size * p.q.index(cta.batch, head_of<cfg>(cta, row), cta.first_q + row / heads);
    };
    const int count = cta.seqlen_q - cta.first_row;
    if constexpr (Base::layout.widens_q)
      copy_rows<typename Base::QRewrite::Codes, size * cfg.head_dim, threads>(Base::q_smem() + Base::QRewrite::codes_at,
                                                                              count, cta.thread, address_of);
    else
      copy_rows<typename Base::QTile, size * cfg.head_dim, threads>(Base::q_smem(), count, cta.thread, address_of);
  }

  float* slot_row(unsigned slot, int row) const {
    return params.slots + static_cast<index_t>(slot) * decode_slot_floats(cfg) + row * decode_row_floats(cfg);
  }

  // Writes 8 channels of a partial state. The thread of chunk 0 also writes the row's statistics. In the third pass the
  // sums are counts, and elements with a count above 0 become NaN.
  template <class Sums>
  void store_part(unsigned slot, int row, int chunk, const Sums& sums, NanPass pass) const {
    float* const to = slot_row(slot, row);
    if (pass == count_non_finite) {
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (sums.o[i] > 0.0f) to[chunk * 8 + i] = detail::float_of(0x7fffffffu);
      return;
    }
    store_global_4(to + chunk * 8, sums.o[0], sums.o[1], sums.o[2], sums.o[3]);
    store_global_4(to + chunk * 8 + 4, sums.o[4], sums.o[5], sums.o[6], sums.o[7]);
    if (chunk == 0) store_global_4(to + cfg.head_dim_v, sums.row_max, sums.row_sum, sums.scale_log2, 0.0f);
  }

  // Merges the parts of a tile, which are all in the workspace, and stores the rows.
  void merge(const DecodeWork& work, const TileParts& parts) {
    begin_tile(work);
    const CtaEpilogue epilogue{p, cta, normal};
    const float v_scale = epilogue.v_descale();
#pragma unroll 1
    for (int i = cta.thread; i < cfg.block_m * chunks; i += threads) {
      const int row = i / chunks, chunk = i % chunks;
      if (cta.first_row + row >= cta.seqlen_q) continue;
      typename CtaEpilogue::WarpsResult all = merged_chunk(parts, row, chunk);
      epilogue.finish_chunk(row, chunk, v_scale, all);
      epilogue.store_8(cta.first_row + row, chunk, all.o);
    }
  }
  typename CtaEpilogue::WarpsResult merged_chunk(const TileParts& parts, int row, int chunk) const {
    typename CtaEpilogue::WarpsResult all{minus_infinity, 0.0f, 0.0f, {}};
    float unused;
#pragma unroll 4
    for (unsigned i = 0; i < parts.count; ++i) {
      float row_max, row_sum;
      load_global_4(slot_row(parts.slot(i), row) + cfg.head_dim_v, row_max, row_sum, all.scale_log2, unused);
      all.row_max = fmaxf(all.row_max, row_max);
    }
#pragma unroll 4
    for (unsigned i = 0; i < parts.count; ++i) {
      const float* const from = slot_row(parts.slot(i), row);
      float row_max, row_sum, x[8];
      load_global_4(from + cfg.head_dim_v, row_max, row_sum, unused, unused);
      load_global_4(from + chunk * 8, x[0], x[1], x[2], x[3]);
      load_global_4(from + chunk * 8 + 4, x[4], x[5], x[6], x[7]);
      const float factor =
          row_max == all.row_max ? 1.0f : Softmax::rescale_factor(row_max, all.row_max, all.scale_log2);
      all.row_sum += row_sum * factor;
#pragma unroll
      for (int j = 0; j < 8; ++j) all.o[j] = fmaf(factor, x[j], all.o[j]);
    }
    return all;
  }
};

// The walk of a CTA along the line of all blocks.
template <const Sm80Config& cfg>
struct DecodeLine {
  using Attention = DecodeAttention<cfg>;
  const DecodeParams& params;
  const AttentionParams& p;
  index_t heads_k;
  BlockLine line;

  explicit DecodeLine(const DecodeParams& all)
      : params(all), p(all.sm80.attention), heads_k(p.heads_q / cfg.packed_heads) {}

  static int row_tiles(const Sequence& s) {
    return (static_cast<int>(s.seqlen_q) * cfg.packed_heads + cfg.block_m - 1) / cfg.block_m;
  }
  // Returns the number of blocks of a tile. A tile without keys counts as one block, because its output must be
  // written.
  int blocks_of(const Sequence& s, int row_tile) const {
    Attention tile(params, 0, 0);
    tile.cta.seqlen_q = static_cast<int>(s.seqlen_q) * cfg.packed_heads;
    tile.band = Band::of(p.position_mask, s.offset, s.seqlen_k);
    const int count = tile.keys_of_tile(row_tile).count(Attention::cta_block_n);
    return count > 0 ? count : 1;
  }
  unsigned blocks_of_head(const Sequence& s) const {
    unsigned blocks = 0;
    for (int tile = 0; tile < row_tiles(s); ++tile) blocks += static_cast<unsigned>(blocks_of(s, tile));
    return blocks;
  }
  unsigned blocks_of_sequence(index_t batch) const {
    return static_cast<unsigned>(heads_k) * blocks_of_head(sequence_of(p, batch));
  }

  // Counts all blocks, and returns the tile in which the CTA's range begins. If the CTA has no work, `blocks` is 0. All
  // threads call it.
  DecodeWork start(unsigned smem) {
    DecodeWork work;
    const bool equal = !p.cu_seqlens_q.present() && !p.seqused_q.present() && !p.seqused_k.present() && !p.has_starts;
    const Place place = equal ? place_of_equal() : place_of_unequal(smem);
    if (!place.found) return work;
    const unsigned begin = line.begin(blockIdx.x);
    const Sequence s = sequence_of(p, place.batch);
    const unsigned of_head = blocks_of_head(s);
    work.batch = static_cast<int>(place.batch), work.head_k = static_cast<int>((begin - place.before) / of_head);
    work.first_block = place.before + static_cast<unsigned>(work.head_k) * of_head;
    for (work.blocks = blocks_of(s, 0); work.first_block + work.blocks <= begin;
         work.blocks = blocks_of(s, work.row_tile))
      work.first_block += static_cast<unsigned>(work.blocks), ++work.row_tile;
    limit(work);
    return work;
  }

  // Moves to the next tile. Returns false if the CTA's range ends before it.
  bool advance(DecodeWork& work) const {
    work.first_block += static_cast<unsigned>(work.blocks);
    if (work.first_block >= line.begin(blockIdx.x + 1)) return false;
    Sequence s = sequence_of(p, work.batch);
    if (++work.row_tile == row_tiles(s)) {
      work.row_tile = 0;
      if (++work.head_k == heads_k) {
        work.head_k = 0;
        do s = sequence_of(p, ++work.batch);
        while (row_tiles(s) == 0);
      }
    }
    work.blocks = blocks_of(s, work.row_tile);
    limit(work);
    return true;
  }
  unsigned tile_number(const DecodeWork& work) const {
    return static_cast<unsigned>((work.batch * heads_k + work.head_k) * params.row_tiles + work.row_tile);
  }

 private:
  // The sequence in which the CTA's range begins, and the number of blocks before this sequence.
  struct Place {
    bool found = false;
    index_t batch = 0;
    unsigned before = 0;
  };
  void set_line(unsigned blocks) {
    line = BlockLine::of(blocks, gridDim.x, static_cast<unsigned>(params.least_blocks));
  }

  // All sequences have the same lengths.
  Place place_of_equal() {
    const unsigned each = p.batch > 0 ? blocks_of_sequence(0) : 0;
    set_line(each * static_cast<unsigned>(p.batch));
    if (blockIdx.x >= line.ctas) return {};
    const unsigned batch = line.begin(blockIdx.x) / each;
    return {true, static_cast<index_t>(batch), batch * each};
  }

  // Each thread counts the blocks of some sequences. The counts go through shared memory.
  Place place_of_unequal(unsigned smem) {
    const int thread = static_cast<int>(threadIdx.x);
    const index_t each = (p.batch + cfg.threads() - 1) / cfg.threads(), first = thread * each;
    unsigned mine = 0;
    for (index_t b = first; b < first + each && b < p.batch; ++b) mine += blocks_of_sequence(b);
    store_shared(smem + 4 * thread, mine);
    __syncthreads();
    unsigned all = 0, before = 0;
#pragma unroll 8
    for (int i = 0; i < cfg.threads(); ++i) {
      const unsigned count = load_shared(smem + 4 * i);
      all += count, before += i < thread ? count : 0;
    }
    set_line(all);
    if (blockIdx.x >= line.ctas) return {};
    const unsigned begin = line.begin(blockIdx.x);
    __syncthreads();  // all counts have been read
    if (before <= begin && begin < before + mine)
      store_shared(smem, static_cast<unsigned>(thread)), store_shared(smem + 4, before);
    __syncthreads();
    index_t batch = static_cast<index_t>(load_shared(smem)) * each;
    before = load_shared(smem + 4);
    __syncthreads();  // the CTA's tiles take this place
    for (unsigned count = blocks_of_sequence(batch); before + count <= begin; count = blocks_of_sequence(++batch))
      before += count;
    return {true, batch, before};
  }

  // Sets the blocks of the tile that are in the CTA's range.
  void limit(DecodeWork& work) const {
    const int begin = static_cast<int>(line.begin(blockIdx.x)) - static_cast<int>(work.first_block),
              end = static_cast<int>(line.begin(blockIdx.x + 1)) - static_cast<int>(work.first_block);
    work.from = begin > 0 ? begin : 0;
    work.count = (end < work.blocks ? end : work.blocks) - work.from;
  }
};

// All threads of a CTA call this function after they have written the results of one of `count` parts. Returns whether
// all other parts are already written; their results are then visible to all threads. The counter goes back to 0.
inline bool is_last_arrival(unsigned* counter, unsigned count) {
  __threadfence();
  __syncthreads();
  const bool last = __syncthreads_or(threadIdx.x == 0 && atomicInc(counter, count - 1) == count - 1);
  __threadfence();
  return last;
}

// Rows beyond seqused_q: out = 0 and lse = -inf.
template <const Sm80Config& cfg>
inline void clear_unused_decode_rows(const AttentionParams& p) {
  constexpr int words = bytes_of(cfg.out) * cfg.head_dim_v / 16;
  for (index_t i = blockIdx.x; i < p.batch * p.heads_q; i += gridDim.x) {
    const Sequence s = sequence_of(p, i / p.heads_q);
    const UnusedRows rows{i / p.heads_q, i % p.heads_q, s.first_q, s.seqlen_q, s.rows_q, 0, words, 1};
    clear_unused_rows<Bytes16, cfg.threads()>(p, rows, true);
  }
}

template <const Sm80Config& cfg>
void attention_decode(const DecodeParams& params) {
  extern __shared__ __align__(1024) char decode_memory[];
  griddepcontrol_wait<cfg.programmatic>();
  if (params.sm80.attention.seqused_q.present()) clear_unused_decode_rows<cfg>(params.sm80.attention);
  DecodeLine<cfg> line(params);
  DecodeWork work = line.start(shared_address(decode_memory));
  if (work.blocks == 0) return;
  do {
    const TileParts parts = TileParts::of(line.line, work.first_block, static_cast<unsigned>(work.blocks));
    const unsigned slot = parts.slot(blockIdx.x - parts.first_cta);
    bool again = true;
#pragma unroll 1
    for (int pass = normal; again; ++pass) {
      DecodeAttention<cfg> attention(params, shared_address(decode_memory), volatile_copy(threadIdx.x));
      again = attention.run(work, parts, slot, static_cast<NanPass>(pass));
    }
    if (parts.count > 1 && is_last_arrival(params.arrivals + line.tile_number(work), parts.count))
      DecodeAttention<cfg>(params, shared_address(decode_memory), threadIdx.x).merge(work, parts);
    __syncthreads();  // the next tile takes the place of the results in shared memory
  } while (line.advance(work));
}

}  // namespace rapt
