// attention_decode: few query rows against many keys. The loop over keys is that of attention_sm80. Three things
// differ:
// - The rows of all query heads of a KV head share a tile, so K and V are read once.
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
  Sequence sequence{};
  int batch = 0, head_k = 0, row_tile = 0;
  unsigned first_block = 0;  // the number of the tile's first block in the line of all blocks
  int blocks = 0;            // of the tile
  int from = 0, count = 0;   // the CTA's blocks, counted in the tile
  TileParts parts{};         // the CTAs of the tile
};

template <const Sm80Config& cfg>
struct DecodeAttention : AttentionSm80<cfg> {
  using Base = AttentionSm80<cfg>;
  using Base::p, Base::cta, Base::scale, Base::band, Base::offset, Base::n_blocks, Base::first_n_block, Base::k_view,
      Base::v_view;
  using typename Base::Softmax, typename Base::OFragment, typename Base::KeyRanges, typename Base::CtaEpilogue;
  static constexpr int threads = cfg.threads(), chunks = cfg.head_dim_v / 8;
  static_assert(cfg.warps_n > 1 && !cfg.wide(), "warps share the keys of a block");

  const DecodeParams& params;

  DecodeAttention(const DecodeParams& all, unsigned smem_address, unsigned thread_index)
      : Base(all.sm80, smem_address, thread_index), params(all) {}

  // Runs one pass over the CTA's part of a tile. Returns whether another pass is needed (NanPass).
  bool run(const DecodeWork& work, NanPass pass) {
    begin_tile(work);
    load_packed_q();
    Base::load_first_kv();
    if (pass == normal) griddepcontrol_launch_dependents<cfg.programmatic>();
    scale = uniform_scale<cfg>(p, cta);
    Softmax softmax(Base::softmax_scale_log2());
    OFragment o = {};
    Base::mainloop(pass, softmax, o);
    RAPT_TRACE("epilogue", 0);
    cp_async_wait_group(0);
    const CtaEpilogue epilogue{p, cta, pass};
    epilogue.stage_rows(softmax, o);
    const float v_scale = epilogue.v_descale();
    const float nan_if_nonfinite = epilogue.combine_staged(softmax, [&](int row, int chunk, auto& sums) {
      if (work.parts.count > 1) {
        store_part(work.parts.slot(blockIdx.x - work.parts.first_cta), row, chunk, sums, pass);
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
    const Sequence& sequence = work.sequence;
    cta.batch = work.batch, cta.head_k = work.head_k, cta.head = work.head_k * group();
    cta.first_row = work.row_tile * cfg.block_m, cta.seqlen_q = static_cast<int>(sequence.seqlen_q) * group();
    cta.first_q = sequence.first_q, cta.first_k = sequence.first_k, offset = sequence.offset;
    band = Band::of(p.position_mask, sequence.offset, sequence.seqlen_k);
    const KeyRanges keys = keys_of_tile(work.row_tile);
    first_n_block = keys.first(Base::cta_block_n) + work.from;
    n_blocks = keys.empty() ? 0 : work.count;
    k_view.rows = KvView(p, p.k, bytes_of(cfg.k), cta.batch, cta.head_k, sequence.first_k).rows;
    v_view.rows = KvView(p, p.v, bytes_of(cfg.v), cta.batch, cta.head_k, sequence.first_k).rows;
  }
  int group() const { return static_cast<int>(p.by_group.value); }  // query heads of a KV head
  KeyRanges keys_of_tile(int row_tile) const {
    const int first = row_tile * cfg.block_m, past = first + cfg.block_m;
    return Base::keys_of_rows(first, (cta.seqlen_q < past ? cta.seqlen_q : past) - 1);
  }

  void load_packed_q() const {
    constexpr int size = bytes_of(cfg.q);
    const auto address_of = [&](int r) {
      const int row = cta.first_row + r;
      return static_cast<const char*>(p.q.data) +
             size * p.q.index(cta.batch, head_of<cfg>(p, cta, row), cta.first_q + query_of<cfg>(p, row));
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

  // Merges the parts of a tile, which are all in the workspace, and stores the rows. A warp takes one row at a time.
  // Its lanes divide the channels, in chunks of 8, and also the parts.
  static constexpr int part_groups = chunks > 16 ? 1 : chunks > 8 ? 2 : chunks > 4 ? 4 : 8;
  void merge(const DecodeWork& work) {
    begin_tile(work);
    const CtaEpilogue epilogue{p, cta, normal};
    const float v_scale = epilogue.v_descale();
    const int rows = cta.seqlen_q - cta.first_row < cfg.block_m ? cta.seqlen_q - cta.first_row : cfg.block_m;
#pragma unroll 1
    for (int row = cta.thread / 32; row < rows; row += threads / 32) {
      const int chunk = cta.lane % chunks, group = cta.lane / chunks;
      MergedRow all;
      if (group < part_groups) all = merged_parts(work.parts, group, row, chunk);
#pragma unroll
      for (int step = part_groups / 2; step > 0; step /= 2) all.add_from_lane(cta.lane + step * chunks);
      if (group == 0) {
        epilogue.finish_chunk(row, chunk, v_scale, all);
        epilogue.store_8(cta.first_row + row, chunk, all.o);
      }
    }
  }

  // The merged state of some parts, for 8 channels of a row.
  struct MergedRow : CtaEpilogue::WarpsResult {
    using State = typename CtaEpilogue::WarpsResult;
    MergedRow() : State{minus_infinity, 0.0f, 0.0f, {}} {}

    float factor(float from) const {
      return from == this->row_max ? 1.0f : Softmax::rescale_factor(from, this->row_max, this->scale_log2);
    }
    void raise_max(float to) {
      const float old_max = this->row_max;
      this->row_max = fmaxf(old_max, to);
      const float by = factor(old_max);
      this->row_sum *= by;
#pragma unroll
      for (float& x : this->o) x *= by;
    }
    // The row_max of `part` must not be above this row_max.
    void add(const State& part) {
      const float by = factor(part.row_max);
      this->row_sum = fmaf(by, part.row_sum, this->row_sum);
#pragma unroll
      for (int j = 0; j < 8; ++j) this->o[j] = fmaf(by, part.o[j], this->o[j]);
    }
    void add_from_lane(int lane) {
      State other{__shfl_sync(~0u, this->row_max, lane), __shfl_sync(~0u, this->row_sum, lane), 0.0f, {}};
#pragma unroll
      for (int j = 0; j < 8; ++j) other.o[j] = __shfl_sync(~0u, this->o[j], lane);
      raise_max(other.row_max);
      add(other);
    }
  };

  // Merges the parts group, group + part_groups, and so on. The loads of several parts are issued together: their
  // latency would dominate the merge.
  MergedRow merged_parts(const TileParts& parts, int group, int row, int chunk) const {
    constexpr int together = threads * cfg.min_blocks > 384 ? 4 : 8;  // as many as the registers allow
    MergedRow all;
#pragma unroll 1
    for (unsigned first = static_cast<unsigned>(group); first < parts.count; first += together * part_groups) {
      typename MergedRow::State part[together];
#pragma unroll
      for (int i = 0; i < together; ++i) {
        const unsigned number = first + static_cast<unsigned>(i * part_groups);
        part[i] = load_part(parts.slot(number < parts.count ? number : parts.count - 1), row, chunk);
      }
#pragma unroll
      for (int i = 1; i < together; ++i)
        if (first + static_cast<unsigned>(i * part_groups) >= parts.count) part[i] = MergedRow();
      all.scale_log2 = part[0].scale_log2;
      float row_max = part[0].row_max;
#pragma unroll
      for (int i = 1; i < together; ++i) row_max = fmaxf(row_max, part[i].row_max);
      all.raise_max(row_max);
#pragma unroll
      for (int i = 0; i < together; ++i) all.add(part[i]);
    }
    return all;
  }
  typename MergedRow::State load_part(unsigned slot, int row, int chunk) const {
    const float* const from = slot_row(slot, row);
    typename MergedRow::State part;
    float unused;
    load_global_4(from + cfg.head_dim_v, part.row_max, part.row_sum, part.scale_log2, unused);
    load_global_4(from + chunk * 8, part.o[0], part.o[1], part.o[2], part.o[3]);
    load_global_4(from + chunk * 8 + 4, part.o[4], part.o[5], part.o[6], part.o[7]);
    return part;
  }
};

// Finds the work of a CTA.
template <const Sm80Config& cfg>
struct DecodeWalk {
  using Attention = DecodeAttention<cfg>;
  const DecodeParams& params;
  const AttentionParams& p;
  index_t heads_k;
  BlockLine line;

  explicit DecodeWalk(const DecodeParams& all)
      : params(all), p(all.sm80.attention), heads_k(static_cast<index_t>(all.heads_k.value)) {}

  // Returns the CTA's first work. If the CTA has none, `blocks` is 0. All threads call it.
  DecodeWork start(unsigned smem) { return p.has_lists() ? start_in_line(smem) : part_of_equal(); }

  // Moves to the next tile. Returns false if the CTA has no more work.
  bool advance(DecodeWork& work) const {
    if (!p.has_lists()) return false;
    work.first_block += static_cast<unsigned>(work.blocks);
    if (work.first_block >= line.begin(blockIdx.x + 1)) return false;
    if (++work.row_tile == row_tiles(work.sequence)) {
      work.row_tile = 0;
      if (++work.head_k == heads_k) {
        work.head_k = 0;
        do work.sequence = sequence_of(p, ++work.batch);
        while (row_tiles(work.sequence) == 0);
      }
    }
    work.blocks = blocks_of(work.sequence, work.row_tile);
    limit(work);
    return true;
  }
  unsigned tile_number(const DecodeWork& work) const {
    return static_cast<unsigned>(work.batch * heads_k + work.head_k) * params.row_tiles.value +
           static_cast<unsigned>(work.row_tile);
  }

 private:
  int row_tiles(const Sequence& s) const {
    return (static_cast<int>(s.seqlen_q) * static_cast<int>(p.by_group.value) + cfg.block_m - 1) / cfg.block_m;
  }
  // Returns the number of blocks of a tile. A tile without keys counts as one block, because its output must be
  // written.
  int blocks_of(const Sequence& s, int row_tile) const {
    Attention tile(params, 0, 0);
    tile.cta.seqlen_q = static_cast<int>(s.seqlen_q) * tile.group();
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

  // All sequences have the same lengths: the host has divided each tile into parts.
  DecodeWork part_of_equal() const {
    const unsigned tile = params.parts.quotient(blockIdx.x), head = params.row_tiles.quotient(tile),
                   batch = params.heads_k.quotient(head), each = params.part_blocks.value;
    DecodeWork work;
    work.sequence = params.sequence;
    work.batch = static_cast<int>(batch), work.head_k = static_cast<int>(head - batch * params.heads_k.value);
    work.row_tile = static_cast<int>(tile - head * params.row_tiles.value);
    const int blocks = blocks_of(work.sequence, work.row_tile);
    work.parts = {tile * params.parts.value, params.part_blocks.quotient(static_cast<unsigned>(blocks - 1)) + 1, false};
    work.from = static_cast<int>((blockIdx.x - work.parts.first_cta) * each);
    work.count = blocks - work.from < static_cast<int>(each) ? blocks - work.from : static_cast<int>(each);
    work.blocks = work.count > 0 ? blocks : 0;
    return work;
  }

  // Counts all blocks, and finds the tile in which the CTA's range of the line begins.
  DecodeWork start_in_line(unsigned smem) {
    DecodeWork work;
    const Place place = find_sequence(smem);
    if (!place.found) return work;
    const unsigned begin = line.begin(blockIdx.x);
    const Sequence s = work.sequence = sequence_of(p, place.batch);
    const unsigned of_head = blocks_of_head(s);
    work.batch = static_cast<int>(place.batch), work.head_k = static_cast<int>((begin - place.before) / of_head);
    work.first_block = place.before + static_cast<unsigned>(work.head_k) * of_head;
    for (work.blocks = blocks_of(s, 0); work.first_block + work.blocks <= begin;
         work.blocks = blocks_of(s, work.row_tile))
      work.first_block += static_cast<unsigned>(work.blocks), ++work.row_tile;
    limit(work);
    return work;
  }

  // The sequence in which the CTA's range begins, and the number of blocks before this sequence.
  struct Place {
    bool found = false;
    index_t batch = 0;
    unsigned before = 0;
  };
  // Each thread counts the blocks of some sequences. The counts go through shared memory.
  Place find_sequence(unsigned smem) {
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
    line = BlockLine::of(all, gridDim.x, static_cast<unsigned>(params.least_blocks));
    const unsigned begin = line.begin(blockIdx.x);
    if (begin == line.blocks) return {};
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

  // Sets the blocks of the tile that are in the CTA's range of the line, and the parts of the tile.
  void limit(DecodeWork& work) const {
    const int begin = static_cast<int>(line.begin(blockIdx.x)) - static_cast<int>(work.first_block),
              end = static_cast<int>(line.begin(blockIdx.x + 1)) - static_cast<int>(work.first_block);
    work.from = begin > 0 ? begin : 0;
    work.count = (end < work.blocks ? end : work.blocks) - work.from;
    work.parts = TileParts::of(line, work.first_block, static_cast<unsigned>(work.blocks));
  }
};

// All threads of a CTA call this function after they have written the results of one of `count` parts. Returns whether
// all other parts are already written; their results are then visible to all threads. The counter goes back to 0.
// The barriers and the order of thread 0's atomic operation make all writes of the CTA visible (PTX ISA 9.0, section
// 8.8, causality order).
inline bool is_last_arrival(unsigned* counter, unsigned count) {
  __syncthreads();
  return __syncthreads_or(threadIdx.x == 0 && atomic_inc_acq_rel(counter, count - 1) == count - 1);
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
  RAPT_TRACE_BEGIN("prologue");
  extern __shared__ __align__(1024) char decode_memory[];
  if (params.sm80.attention.has_lists()) griddepcontrol_wait<cfg.programmatic>();
  DecodeWalk<cfg> walk(params);
  DecodeWork work = walk.start(shared_address(decode_memory));
  griddepcontrol_wait<cfg.programmatic>();
  if (params.sm80.attention.seqused_q.present()) clear_unused_decode_rows<cfg>(params.sm80.attention);
  while (work.blocks > 0) {
    bool again = true;
#pragma unroll 1
    for (int pass = normal; again; ++pass) {
      DecodeAttention<cfg> attention(params, shared_address(decode_memory), volatile_copy(threadIdx.x));
      again = attention.run(work, static_cast<NanPass>(pass));
    }
    RAPT_TRACE("arrive", 0);
    const unsigned parts = work.parts.count;
    if (parts > 1 && is_last_arrival(params.arrivals + walk.tile_number(work), parts)) {
      RAPT_TRACE("merge", 0);
      DecodeAttention<cfg>(params, shared_address(decode_memory), threadIdx.x).merge(work);
    }
    if (!walk.advance(work)) break;
    __syncthreads();  // the next tile takes the place of the results in shared memory
    RAPT_TRACE("prologue", 0);
  }
  RAPT_TRACE_END();
}

}  // namespace rapt
