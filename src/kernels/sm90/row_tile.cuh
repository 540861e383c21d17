// A tile of query rows of attention_sm90. The producer thread computes its description and writes it to shared memory.
// The consumer warpgroups read single values when they need them, which saves registers. Device only.
#pragma once

#include "ptx/copy.cuh"
#include "shared/key_tiles.h"
#include "shared_state.cuh"

namespace rapt {

// Passes over a tile. Finite data needs only the first pass. If the first pass stores a value that is not finite, a
// masked key can be the cause (0 * NaN). The second pass then reads non-finite elements of V as 0. The third pass
// counts, for each output element, the non-finite elements of V that its row sees. An output element with a count above
// 0 becomes NaN (docs/semantics.md, "NaN and Inf").
enum class NanPass : unsigned { normal, zero_non_finite, count_non_finite };

// Messages that the producer sends in place of a pass. list_complete: asks the consumers to confirm that the list of
// tiles to compute again is complete. no_more: there are no more tiles.
constexpr NanPass list_complete = static_cast<NanPass>(3), no_more = static_cast<NanPass>(4);

// Blocks of block_n keys, with the numbers `begin` to `end` - 1.
struct NBlocks {
  int begin, end;
  bool empty() const { return begin >= end; }
};

// With packed heads, row r of the head group is query r / packed_heads of head `head() + r % packed_heads`. All counts
// of rows (first_row, seqlen_q, rows_q) are counts of such rows.
template <const Sm90Config& cfg>
struct RowTile {
  using KeyRanges = KeyTiles<int, cfg.causal_or_local>;
  static constexpr int rows = cfg.block_m(), heads = cfg.packed_heads;

  unsigned at;  // address of the description in shared memory

  NanPass pass() const { return static_cast<NanPass>(word(0)); }
  int item() const { return word(1); }
  int batch() const { return word(2); }
  int head() const { return word(3); }       // with packed heads, the first of them
  int first_row() const { return word(4); }  // first row of the tile, counted in its sequence
  int first_q() const { return word(5); }    // packed row where the sequence begins
  int seqlen_q() const { return word(6); }
  int rows_q() const { return word(7); }  // including rows past seqused_q
  int query_of(int row) const { return first_q() + row / heads; }
  int head_of(int row) const { return head() + row % heads; }
  bool foreign_tail() const { return word(8); }             // rows of K and V after the keys can be nonzero
  NBlocks n_blocks() const { return {word(9), word(10)}; }  // blocks that some row of the tile sees
  Band band() const {
    Band b;
    b.begin = word(11), b.end = word(12), b.seqlen_k = word(13);
    return b;
  }

  int offset() const { return word(15); }  // distance of query i to key j: i + offset - j

  // Computes and writes the description of tile `item`. The producer thread calls it. Returns false if the tile has no
  // rows.
  bool find(const Sm90Params& params, unsigned item) const {
    const AttentionParams& p = params.attention;
    const TileScheduler::WorkTile work = params.scheduler.work_tile(item);
    const TileSequence sequence = params.sequences.at(p, work.batch);
    const int first_row = static_cast<int>(work.m_block) * rows, seqlen_q = sequence.seqlen_q * heads;
    put(1, static_cast<int>(item)), put(2, static_cast<int>(work.batch)), put(3, static_cast<int>(work.head) * heads);
    put(4, first_row), put(5, sequence.first_q), put(6, seqlen_q), put(7, sequence.rows_q * heads);
    put(8, sequence.foreign_tail);
    const Band band = sequence.band;
    put(11, band.begin), put(12, band.end), put(13, band.seqlen_k);
    put(14, 0);
    if constexpr (cfg.alibi) put(15, sequence.offset);
    const NBlocks n_blocks = n_blocks_of(keys_of(band, first_row, rows, seqlen_q));
    put(9, n_blocks.begin), put(10, n_blocks.end);
    return first_row < seqlen_q || (p.seqused_q.present() && first_row < sequence.rows_q * heads);
  }
  unsigned listed() const { return at + 4 * 14; }  // address of a word, which is 1 if the tile is in the list
  void set_pass(NanPass pass) const { put(0, static_cast<int>(pass)); }

  // Returns the keys that rows `first` to `first + count - 1` see. Rows past seqlen_q see no key.
  static KeyRanges keys_of(const Band& band, int first, int count, int seqlen_q) {
    if (first >= seqlen_q) return KeyRanges::of_rows({0, 0}, {0, 0});
    if constexpr (!cfg.causal_or_local) return KeyRanges::of_rows({0, band.seqlen_k}, {0, band.seqlen_k});
    const int last = ((first + count < seqlen_q ? first + count : seqlen_q) - 1) / heads;
    first /= heads;
    return KeyRanges::of_rows({band.first(first), band.past(first)}, {band.first(last), band.past(last)});
  }
  static NBlocks n_blocks_of(const KeyRanges& keys) {
    const int begin = keys.first(cfg.block_n);
    return {begin, begin + keys.count(cfg.block_n)};
  }

 private:
  int word(unsigned i) const { return static_cast<int>(load_shared(at + 4 * i)); }
  void put(unsigned i, int x) const { store_shared(at + 4 * i, static_cast<unsigned>(x)); }
};

}  // namespace rapt
