// DecodeWalk: which tiles of attention_decode a CTA computes, and which part of their keys. If all sequences have the
// same lengths, the host has divided the keys. Otherwise the CTA finds its range of the line of all blocks (BlockLine).
// Device only.
#pragma once

#include "decode.h"
#include "ptx/copy.cuh"

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
  unsigned tile_number(const DecodeWork& work) const {
    return static_cast<unsigned>(work.batch * heads_k + work.head_k) * params.row_tiles.value +
           static_cast<unsigned>(work.row_tile);
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

}  // namespace rapt
