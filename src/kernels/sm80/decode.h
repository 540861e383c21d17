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
// workspace, and the one that arrives last merges them.
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
  constexpr bool is_stored(unsigned) const { return count > 1; }
  // Returns the number of CTAs whose partial states the last CTA merges.
  constexpr unsigned to_merge() const { return count; }
};

// The parts of a tile with part_keys > 0. Part i has the keys from number (first + i) * part_keys on. Either each part
// has a CTA, which writes a partial state to the workspace, and the last CTA merges the states. Or one CTA computes all
// parts and merges each part with the parts before it (`folds`): it needs two slots, in turns. Both merge in the order
// of the keys, with the same arithmetic, so they give the same bits.
struct FixedParts {
  unsigned first_slot, count;
  bool folds;

  constexpr unsigned slot(unsigned i) const { return first_slot + (folds ? i % 2 : i); }
  constexpr bool is_stored(unsigned i) const { return folds ? i + 1 < count : count > 1; }
  constexpr unsigned to_merge() const { return folds ? 1 : count; }
};

// A partial state: for each row of the tile, the sums of its output, then row_max, row_sum and scale_log2.
constexpr int decode_row_floats(const Sm80Config& c) { return c.head_dim_v + 4; }

struct DecodeParams {
  Sm80Params sm80;               // the scheduler is not used
  float* slots = nullptr;        // two for each CTA, or FixedParts
  unsigned* arrivals = nullptr;  // for each tile; they are 0 between launches
  FastDivmod row_tiles;          // of the longest sequence
  FastDivmod heads_k;
  // If all sequences have the same lengths, the host divides the keys. Each tile has `parts` CTAs, and each of them
  // computes `part_blocks` blocks. Tiles with fewer blocks than others may have fewer parts.
  FastDivmod parts, part_blocks;
  Sequence sequence{};   // each sequence
  int least_blocks = 1;  // BlockLine::of
  // With part_keys > 0: a unit of work is a part of a tile, or a whole tile (`folds`). A tile has `parts` units, also
  // if it has fewer parts: the other units are empty. The CTAs take units from a counter, which is 0 between launches.
  unsigned units = 0;
  unsigned* next_unit = nullptr;
  bool folds = false;
  int slot_rows = 0;  // the rows of a slot
};

// Returns the number of rows of a sequence, and of its row tiles. group: the query heads of a KV head.
constexpr int decode_rows(const Sequence& s, const FastDivmod& group) {
  return static_cast<int>(s.seqlen_q) * static_cast<int>(group.value);
}
constexpr int decode_row_tiles(const Sequence& s, const FastDivmod& group, const Sm80Config& c) {
  return (decode_rows(s, group) + c.block_m - 1) / c.block_m;
}
// Returns the keys that the rows of a tile see.
constexpr KeyTiles<int> keys_of_row_tile(const AttentionParams& a, const Sequence& s, int row_tile,
                                         const Sm80Config& c) {
  const Band band = Band::of(a.position_mask, s.offset, s.seqlen_k);
  if (!c.causal_or_local) return KeyTiles<int>::of_rows({0, band.seqlen_k}, {0, band.seqlen_k});
  const int rows = decode_rows(s, a.by_group), first = row_tile * c.block_m, past = first + c.block_m;
  const auto query_of = [&](int row) { return static_cast<int>(a.by_group.quotient(static_cast<unsigned>(row))); };
  const int first_query = query_of(first), last_query = query_of((past < rows ? past : rows) - 1);
  return KeyTiles<int>::of_rows({band.first(first_query), band.past(first_query)},
                                {band.first(last_query), band.past(last_query)});
}
// Returns the number of blocks of a tile. A tile without keys counts as one block, because its output must be written.
constexpr int blocks_of_tile(const AttentionParams& a, const Sequence& s, int row_tile, const Sm80Config& c) {
  const int count = keys_of_row_tile(a, s, row_tile, c).count(c.cta_block_n());
  return count > 0 ? count : 1;
}

// Divides the keys of each of `tiles` tiles into equal parts, so that there are at most `ctas` parts in total, unless
// there are more tiles. All sequences must have the same lengths. Returns the number of CTAs.
constexpr unsigned divide_equal_tiles(DecodeParams& params, const Sm80Config& c, unsigned tiles, unsigned ctas,
                                      unsigned most_parts) {
  const AttentionParams& a = params.sm80.attention;
  params.sequence = sequence_of(a, 0);
  unsigned blocks = 1;  // of the tile with the most blocks
  for (int tile = 0; tile < decode_row_tiles(params.sequence, a.by_group, c); ++tile) {
    const auto of_tile = static_cast<unsigned>(blocks_of_tile(a, params.sequence, tile, c));
    blocks = of_tile > blocks ? of_tile : blocks;
  }
  unsigned parts = tiles == 0 ? 1 : ctas / tiles;
  parts = parts < most_parts ? parts : most_parts;
  parts = parts < blocks ? parts : blocks;
  const unsigned each = parts <= 1 ? blocks : (blocks + parts - 1) / parts;
  params.part_blocks = FastDivmod::by(each);
  params.parts = FastDivmod::by((blocks + each - 1) / each);
  return tiles * params.parts.value;
}

}  // namespace rapt
