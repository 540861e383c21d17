// Which tile of rows a thread block takes: the order of blocks over heads and rows. Compiled by host and device code;
// includes nothing outside shared/.
#pragma once

#include "params.h"

namespace rapt {

// n / value by one multiplication, for n below 2^31 (Granlund & Montgomery 1994): a thread block begins with a few
// divisions in a row, and each would take it a hundred cycles.
struct FastDivmod {
  unsigned value = 1, magic = 1u << 31, shift = 31;

  static constexpr FastDivmod by(unsigned value) {
    unsigned bits = 0;
    while (bits < 31 && (1u << bits) < value) ++bits;
    const unsigned long long magic = (1ull << (31 + bits)) / value + (value == 1 ? 0 : 1);
    return {value, static_cast<unsigned>(magic), 31 + bits};
  }
  constexpr unsigned quotient(unsigned n) const { return static_cast<unsigned>((n * 1ull * magic) >> shift); }
};

// Blocks are numbered section by section. A section is some heads (of all sequences) whose keys and values heads_per_section into the
// L2 cache together; in it the last row tiles of all heads come first, then the tiles before them, and so on: under
// causal masks they take longest, and what starts last should be short.
struct TileScheduler {
  struct WorkTile {
    unsigned batch = 0, head = 0, tile = 0;
  };
  unsigned row_tiles = 1, sections = 1;
  FastDivmod section_blocks, section_heads, last_heads, heads_q, group;

  // For `heads` = batch * heads_q heads, `heads_per_section` of which may share a section.
  static constexpr TileScheduler of(unsigned row_tiles, unsigned batch, unsigned heads_q, unsigned group, unsigned heads_per_section) {
    TileScheduler scheduler;
    const unsigned heads = batch * heads_q, sections = (heads + heads_per_section - 1) / heads_per_section,
                   section = (heads + sections - 1) / sections;
    scheduler.row_tiles = row_tiles;
    scheduler.sections = (heads + section - 1) / section;
    scheduler.section_blocks = FastDivmod::by(section * row_tiles);
    scheduler.section_heads = FastDivmod::by(section);
    scheduler.last_heads = FastDivmod::by(heads - (scheduler.sections - 1) * section);
    scheduler.heads_q = FastDivmod::by(heads_q);
    scheduler.group = FastDivmod::by(group);
    return scheduler;
  }

  constexpr WorkTile work_tile(unsigned block) const {
    const unsigned section = section_blocks.quotient(block), within = block - section * section_blocks.value;
    const FastDivmod& width = section + 1 == sections ? last_heads : section_heads;
    const unsigned from_last = width.quotient(within);
    const unsigned index = section * section_heads.value + within - from_last * width.value;
    const unsigned batch = heads_q.quotient(index);
    return {batch, index - batch * heads_q.value, row_tiles - 1 - from_last};
  }
};

}  // namespace rapt
