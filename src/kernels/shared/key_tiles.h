// KeyTiles: which key tiles a query tile visits, and which of these need masking. Today both are ranges of keys; a list
// of tiles could answer the same questions. Compiled by host and
// device code; includes nothing outside shared/.
#pragma once

#include "mask.h"

namespace rapt {

// bounded: rows may see different keys; else every row sees [0, some.end). Int: int where positions are known to fit.
template <class Int, bool bounded = true>
struct KeyTiles {
  struct Range {
    Int begin, end;
  };
  Range some;  // keys that some row sees
  Range full;  // keys that every row sees; may be empty

  // Requires that begins and ends never decrease from row to row. Then the first and the last row determine both.
  static constexpr KeyTiles of_rows(Range first_row, Range last_row) {
    return {{first_row.begin, last_row.end}, {last_row.begin, first_row.end}};
  }

  constexpr bool empty() const { return some.begin >= some.end; }
  // Tiles of `size` keys begin at multiples of it: the first one that is visited, and how many are.
  constexpr Int first(Int size) const { return some.begin / size; }
  constexpr Int count(Int size) const { return empty() ? 0 : (some.end + size - 1) / size - first(size); }
  // Whether some row sees a key of [key, past), and whether some row does not see all of them.
  constexpr bool visits(Int key, Int past) const { return key < some.end && (!bounded || past > some.begin); }
  constexpr bool needs_mask(Int key, Int past) const { return past > full.end || (bounded && key < full.begin); }
};

}  // namespace rapt
