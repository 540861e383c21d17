// The kernel parameter of attention_decode, and how its CTAs share the keys. Compiled by its host and device code;
// includes nothing outside shared/.
#pragma once

#include "../shared/key_tiles.h"
#include "sm80.h"

namespace rapt {

// If sequences have different lengths, all blocks of keys of all tiles stand in one line, tile after tile. Each CTA
// computes `each` blocks of it; the last CTA may have fewer. So all CTAs have the same amount of work, whatever the
// lengths are. A CTA's range can end inside a tile.
struct BlockLine {
  unsigned blocks = 0, each = 1;

  // grid: the number of CTAs. least: the smallest number of blocks for which a CTA is worth its start.
  static constexpr BlockLine of(unsigned blocks, unsigned grid, unsigned least) {
    const unsigned each = blocks / grid + (blocks % grid != 0);
    return {blocks, each > least ? each : least};
  }
  constexpr unsigned begin(unsigned cta) const { return cta * each < blocks ? cta * each : blocks; }
  // Returns the CTA that computes a block.
  constexpr unsigned owner(unsigned block) const { return block / each; }
};

// The CTAs that compute the blocks of one tile. If there are several, each writes a partial state to its slot in the
// workspace, and the one that arrives last merges them, in the order of the keys.
struct TileParts {
  unsigned first_cta, count;
  bool begins_inside;  // the first CTA's range begins before the tile, so the tile begins inside it

  static constexpr TileParts of(const BlockLine& line, unsigned first_block, unsigned blocks) {
    const unsigned first = line.owner(first_block);
    return {first, line.owner(first_block + blocks - 1) - first + 1, line.begin(first) < first_block};
  }
  // Returns the number of part i's slot. A CTA has two slots: for the tile in which its range begins, and for the tile
  // in which its range ends.
  constexpr unsigned slot(unsigned i) const { return 2 * (first_cta + i) + (i == 0 && begins_inside ? 1 : 0); }
};

// A partial state: for each row of the tile, the sums of its output, then row_max, row_sum and scale_log2.
constexpr int decode_row_floats(const Sm80Config& c) { return c.head_dim_v + 4; }
constexpr int decode_slot_floats(const Sm80Config& c) { return c.block_m * decode_row_floats(c); }

struct DecodeParams {
  Sm80Params sm80;               // the scheduler is not used
  float* slots = nullptr;        // two for each CTA
  unsigned* arrivals = nullptr;  // for each tile; they are 0 between launches
  FastDivmod row_tiles;          // of the longest sequence
  FastDivmod heads_k;
  // If all sequences have the same lengths, the host divides the keys. Each tile has `parts` CTAs, and each of them
  // computes `part_blocks` blocks. Tiles with fewer blocks than others may have fewer parts.
  FastDivmod parts, part_blocks;
  Sequence sequence{};   // each sequence
  int least_blocks = 1;  // BlockLine::of
};

// Returns the largest number of blocks of a tile. All sequences must have the same lengths.
constexpr int most_blocks_of_tile(const PositionMask& mask, const Sequence& sequence, int group, const Sm80Config& c) {
  const Band band = Band::of(mask, sequence.offset, sequence.seqlen_k);
  const int rows = static_cast<int>(sequence.seqlen_q) * group;
  int most = 1;
  for (int first = 0; first < rows; first += c.block_m) {
    const int past = first + c.block_m < rows ? first + c.block_m : rows;
    const int first_q = first / group, last_q = (past - 1) / group;
    const auto keys =
        KeyTiles<int>::of_rows({band.first(first_q), band.past(first_q)}, {band.first(last_q), band.past(last_q)});
    const int blocks = keys.count(c.cta_block_n());
    most = blocks > most ? blocks : most;
  }
  return most;
}

// Divides the keys of each of `tiles` tiles into equal parts, so that there are at most `ctas` parts in total, unless
// there are more tiles. All sequences must have the same lengths. Returns the number of CTAs.
constexpr unsigned divide_equal_tiles(DecodeParams& params, const Sm80Config& c, unsigned tiles, unsigned ctas,
                                      unsigned most_parts) {
  params.sequence = sequence_of(params.sm80.attention, 0);
  const unsigned blocks = static_cast<unsigned>(most_blocks_of_tile(
      params.sm80.attention.position_mask, params.sequence, static_cast<int>(params.sm80.attention.group), c));
  unsigned parts = tiles == 0 ? 1 : ctas / tiles;
  parts = parts < most_parts ? parts : most_parts;
  parts = parts < blocks ? parts : blocks;
  const unsigned each = parts <= 1 ? blocks : (blocks + parts - 1) / parts;
  params.part_blocks = FastDivmod::by(each);
  params.parts = FastDivmod::by((blocks + each - 1) / each);
  return tiles * params.parts.value;
}

}  // namespace rapt
