// A tile of query rows of attention_sm90, and where a thread stands in it. Device only.
#pragma once

#include "ptx/copy.cuh"
#include "shared/key_tiles.h"
#include "shared/params.h"
#include "shared/schedule.h"
#include "sm90.h"

namespace rapt {

// Passes over a tile. The first is all there is on finite data. Where it leaves an output that is not finite, hidden
// keys may have reached it (0 * NaN): V is then read with 0 in the place of such elements, and a third pass counts, for
// each output element, those that its row sees: they make it NaN (docs/semantics.md, "hidden is hidden").
enum class NanPass : int { plain, sanitised, count_non_finite };

// Steps of keys: numbers `begin` to `end` - 1, each of block_n keys.
struct Steps {
  int begin = 0, end = 0;
  bool empty() const { return begin >= end; }
};

template <Sm90Config cfg>
struct RowTile {
  using KeyRanges = KeyTiles<int, cfg.causal_or_local>;

  int batch = 0, head = 0, head_k = 0;
  int first_row = 0, seqlen_q = 0;   // of the sequence
  index_t first_q = 0, first_k = 0;  // packed rows where the sequence begins
  Band band;
  bool foreign_tail = false;  // what lies behind the sequence's keys belongs to others, or was never written
  Steps steps;                // those that some row of the tile sees

  // Returns whether the tile has rows.
  bool find(const AttentionParams& p, const TileOrder& order, unsigned item) {
    const TileOrder::Place place = order.place(item);
    batch = static_cast<int>(place.batch), head = static_cast<int>(place.head);
    head_k = static_cast<int>(order.group.quotient(place.head));
    first_row = static_cast<int>(place.tile) * cfg.block_m();
    const Sequence sequence = sequence_of(p, batch);
    seqlen_q = static_cast<int>(sequence.seqlen_q), first_q = sequence.first_q, first_k = sequence.first_k;
    if (first_row >= seqlen_q) return false;
    band = Band::of(p.position_mask, sequence.offset, sequence.seqlen_k);
    foreign_tail = p.cu_seqlens_k.present() || p.seqused_k.present();
    steps = steps_of(first_row, cfg.block_m());
    return true;
  }

  // Rows of the tile that seqused_q leaves unused: 0 and -inf, by the warpgroups that compute.
  void clear_unused(const AttentionParams& p, const TileOrder& order, unsigned item) const {
    const TileOrder::Place place = order.place(item);
    const Sequence sequence = sequence_of(p, place.batch);
    const index_t begin = static_cast<index_t>(place.tile) * cfg.block_m();
    const index_t first = begin > sequence.seqlen_q ? begin : sequence.seqlen_q;
    const index_t past = clamped(begin + cfg.block_m(), 0, sequence.rows_q);
    constexpr int words = bytes_of(cfg.out) * cfg.head_dim_v / 16;
    for (index_t i = threadIdx.x - 128; i < (past - first) * words; i += 128 * cfg.warpgroups) {
      const index_t row = sequence.first_q + first + i / words;
      char* const to = static_cast<char*>(p.out.data) + bytes_of(cfg.out) * p.out.index(place.batch, place.head, row);
      reinterpret_cast<Bytes16*>(to)[i % words] = Bytes16{};
      if (p.lse.present() && i % words == 0)
        static_cast<float*>(p.lse.data)[p.lse.index(place.batch, place.head, row)] = detail::float_of(0xff800000u);
    }
  }

  // Keys and steps of `rows` rows from `first` on.
  KeyRanges keys_of(int first, int rows) const {
    if constexpr (!cfg.causal_or_local) return KeyRanges::of_rows({0, band.seqlen_k}, {0, band.seqlen_k});
    const int last = (first + rows < seqlen_q ? first + rows : seqlen_q) - 1;
    if (last < first) return KeyRanges::of_rows({0, 0}, {0, 0});
    return KeyRanges::of_rows({band.first(first), band.past(first)}, {band.first(last), band.past(last)});
  }
  Steps steps_of(int first, int rows) const {
    const KeyRanges keys = keys_of(first, rows);
    const int begin = keys.first(cfg.block_n);
    return {begin, begin + keys.count(cfg.block_n)};
  }
};

}  // namespace rapt
