// TileScheduler: maps a CTA to its work tile (m block, head, batch). Compiled by host and device code; includes nothing
// outside shared/.
#pragma once

#include "params.h"

namespace rapt {

// CTAs are numbered section by section. A section is a group of heads (of all sequences) whose K and V fit into L2
// together. Within a section the last m block of every head comes first, then the one before it, and so on. Under
// causal masks the last m blocks have the most work, and CTAs that start last should be short (longest processing time
// first).
struct TileScheduler {
  struct WorkTile {
    unsigned batch = 0, head = 0, m_block = 0;
  };
  unsigned m_blocks = 1, sections = 1;
  FastDivmod section_blocks, section_heads, last_heads, heads_q, group;

  // heads_per_section: at most this many of the batch * heads_q heads share a section.
  static constexpr TileScheduler of(unsigned m_blocks, unsigned batch, unsigned heads_q, unsigned group,
                                    unsigned heads_per_section) {
    TileScheduler scheduler;
    const unsigned heads = batch * heads_q, sections = (heads + heads_per_section - 1) / heads_per_section,
                   section = (heads + sections - 1) / sections;
    scheduler.m_blocks = m_blocks;
    scheduler.sections = (heads + section - 1) / section;
    scheduler.section_blocks = FastDivmod::by(section * m_blocks);
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
    return {batch, index - batch * heads_q.value, m_blocks - 1 - from_last};
  }
};

}  // namespace rapt
