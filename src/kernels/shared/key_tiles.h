// KeyTiles: two ranges of keys for a query tile. `some` says which key tiles (n blocks) the query tile visits. `full`
// says which keys need no mask. Block-sparse masks would replace this struct by a list of tiles with the same
// functions. Compiled by host and device code; includes nothing outside shared/.
#pragma once

#include "mask.h"

namespace rapt {

// causal_or_local: rows can see different keys (causal, window). If it is false, every row sees [0, some.end). Int: the
// type of positions.
template <class Int, bool causal_or_local = true>
struct KeyTiles {
  struct Range {
    Int begin, end;
  };
  Range some;  // keys that at least one row sees: the kernel visits their tiles
  Range full;  // keys that every row sees: they need no mask; may be empty

  // Requires that begin and end never decrease from row to row. Then the first and the last row determine both ranges.
  static constexpr KeyTiles of_rows(Range first_row, Range last_row) {
    return {{first_row.begin, last_row.end}, {last_row.begin, first_row.end}};
  }

  constexpr bool empty() const { return some.begin >= some.end; }
  // Tiles have `size` keys and begin at multiples of `size`. first: the index of the first visited tile. count: the
  // number of visited tiles.
  constexpr Int first(Int size) const { return some.begin / size; }
  constexpr Int count(Int size) const { return empty() ? 0 : (some.end + size - 1) / size - first(size); }
  // visits: some row sees a key of [key, past). needs_mask: some row does not see all keys of [key, past).
  constexpr bool visits(Int key, Int past) const { return key < some.end && (!causal_or_local || past > some.begin); }
  constexpr bool needs_mask(Int key, Int past) const {
    return past > full.end || (causal_or_local && key < full.begin);
  }
};

}  // namespace rapt
