// DecodeWalk: which tiles of attention_decode a CTA computes, and which part of their keys. If all sequences have the
// same lengths, the host has divided the keys. Otherwise the CTA finds its range of the line of all blocks (BlockLine).
// FixedPartsWalk does the same for `invariant` calls. Device only.
#pragma once

#include "decode.h"
#include "ptx/copy.cuh"

namespace rapt {

// A tile of query rows, and the part of its blocks of keys that a CTA computes.
template <class Parts>
struct PartWork {
  Sequence sequence{};
  int batch = 0, head_k = 0, row_tile = 0;
  // The number of the tile's first block: in the line of all blocks, or with part_keys > 0 in the sequence.
  unsigned first_block = 0;
  int blocks = 0;           // of the tile
  int from = 0, count = 0;  // the CTA's blocks, counted in the tile
  Parts parts{};            // the parts of the tile
};
struct DecodeWork : PartWork<TileParts> {
  // Returns the number of the CTA's part.
  unsigned part() const { return blockIdx.x - parts.first_cta; }
};
struct FixedWork : PartWork<FixedParts> {
  unsigned number = 0;
  unsigned part() const { return number; }
};

// Returns the number of a tile among the tiles of all sequences and heads.
template <class Parts>
inline unsigned tile_number(const DecodeParams& params, const PartWork<Parts>& work) {
  const auto heads_k = static_cast<index_t>(params.heads_k.value);
  return static_cast<unsigned>(work.batch * heads_k + work.head_k) * params.row_tiles.value +
         static_cast<unsigned>(work.row_tile);
}

// Finds the work of a CTA.
template <const Sm80Config& cfg>
struct DecodeWalk {
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

 private:
  int row_tiles(const Sequence& s) const { return decode_row_tiles(s, p.by_group, cfg); }
  int blocks_of(const Sequence& s, int row_tile) const { return blocks_of_tile(p, s, row_tile, cfg); }
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

// Finds the work of a CTA with part_keys > 0. The tiles of a head are consecutive, so that its keys stay in L2. Its
// last rows come first, because they see the most keys under a causal mask.
template <const Sm80Config& cfg>
struct FixedPartsWalk {
  static constexpr unsigned part_blocks = static_cast<unsigned>(cfg.part_keys / cfg.cta_block_n());
  static_assert(cfg.part_keys % cfg.cta_block_n() == 0, "parts are whole blocks of keys");
  const DecodeParams& params;
  unsigned unit = 0, smem = 0;

  explicit FixedPartsWalk(const DecodeParams& all) : params(all) {}

  // As in DecodeWalk.
  FixedWork start(unsigned smem_address) {
    unit = blockIdx.x, smem = smem_address;
    FixedWork work;
    if (!find(work)) work.blocks = 0;
    return work;
  }
  bool advance(FixedWork& work) {
    if (work.parts.folds && work.number + 1 < work.parts.count) {
      set_part(work, work.number + 1);
      return true;
    }
    take_unit();
    return find(work);
  }

 private:
  // Finds the first unit with work, from the CTA's current unit on.
  bool find(FixedWork& work) {
    for (; unit < params.units; take_unit())
      if (has_work(work)) return true;
    return false;
  }

  // The first units belong to the CTAs with the same numbers. Each later unit is taken from the counter. Each CTA also
  // takes one number after the last unit. So `units` numbers are taken, and the counter returns to 0.
  void take_unit() {
    griddepcontrol_wait<cfg.programmatic>();  // the previous kernel can use the same counter
    __syncthreads();
    if (threadIdx.x == 0) store_shared(smem, gridDim.x + atomic_inc_acq_rel(params.next_unit, params.units - 1));
    __syncthreads();
    unit = load_shared(smem);
    __syncthreads();  // the tile takes this place
  }

  // Sets `work` to the CTA's unit. Returns false if the unit is empty.
  bool has_work(FixedWork& work) const {
    const AttentionParams& p = params.sm80.attention;
    const unsigned tile = params.parts.quotient(unit), index = unit - tile * params.parts.value,
                   head = params.row_tiles.quotient(tile), batch = params.heads_k.quotient(head);
    work.sequence = sequence_of(p, batch);
    work.batch = static_cast<int>(batch), work.head_k = static_cast<int>(head - batch * params.heads_k.value);
    work.row_tile = static_cast<int>((head + 1) * params.row_tiles.value - 1 - tile);
    if (work.row_tile >= decode_row_tiles(work.sequence, p.by_group, cfg)) return false;
    work.first_block =
        static_cast<unsigned>(keys_of_row_tile(p, work.sequence, work.row_tile, cfg).first(cfg.cta_block_n()));
    work.blocks = blocks_of_tile(p, work.sequence, work.row_tile, cfg);
    const unsigned last = work.first_block + static_cast<unsigned>(work.blocks) - 1,
                   count = last / part_blocks - work.first_block / part_blocks + 1;
    work.parts = {params.folds ? 2 * blockIdx.x : tile * params.parts.value, count, params.folds};
    if (index >= count) return false;
    set_part(work, index);
    return true;
  }

  static void set_part(FixedWork& work, unsigned part) {
    const unsigned begin = (work.first_block / part_blocks + part) * part_blocks, end = begin + part_blocks,
                   past = work.first_block + static_cast<unsigned>(work.blocks);
    work.number = part;
    work.from = begin > work.first_block ? static_cast<int>(begin - work.first_block) : 0;
    work.count = static_cast<int>((end < past ? end : past) - work.first_block) - work.from;
  }
};

template <const Sm80Config& cfg, bool fixed_parts = (cfg.part_keys > 0)>
struct WalkOf {
  using Type = DecodeWalk<cfg>;
};
template <const Sm80Config& cfg>
struct WalkOf<cfg, true> {
  using Type = FixedPartsWalk<cfg>;
};

}  // namespace rapt
