// The kernel parameter of attention_decode, and how its CTAs share the keys. Compiled by its host and device code;
// includes nothing outside shared/.
#pragma once

#include "sm80.h"

namespace rapt {

// All blocks of keys of all tiles stand in one line, tile after tile. CTA i computes the blocks begin(i) to
// begin(i + 1) - 1. So all CTAs have the same amount of work, whatever the lengths are. A CTA's range can end inside a
// tile.
struct BlockLine {
  unsigned blocks = 0, ctas = 0;  // ctas <= blocks

  // grid: the number of CTAs. least: the smallest number of blocks for which a CTA is worth its start.
  static constexpr BlockLine of(unsigned blocks, unsigned grid, unsigned least) {
    const unsigned most = blocks / least > 1 ? blocks / least : 1;
    return {blocks, blocks == 0 ? 0 : grid < most ? grid : most};
  }
  constexpr unsigned begin(unsigned cta) const {
    return static_cast<unsigned>(static_cast<unsigned long long>(cta) * blocks / ctas);
  }
  // Returns the CTA that computes a block.
  constexpr unsigned owner(unsigned block) const { return static_cast<unsigned>(((block + 1ull) * ctas - 1) / blocks); }
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
  int row_tiles = 1;             // of the longest sequence
  int least_blocks = 1;          // BlockLine::of
};

}  // namespace rapt
