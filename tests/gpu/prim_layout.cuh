// The layout of tiles in shared memory, checked by the compiler: no two chunks overlap, each stays in its row, and the
// rows of one ldmatrix phase use different banks. Compiled by layout_test.cpp; needs no GPU.
#pragma once

#include "device/tile.cuh"

namespace rapt::test {

template <class Tile>
constexpr bool is_bijection() {
  bool taken[Tile::rows * Tile::chunks] = {};
  for (int row = 0; row < Tile::rows; ++row)
    for (int chunk = 0; chunk < Tile::chunks; ++chunk) {
      const int offset = Tile::offset(row, chunk), place = offset / 16;
      if (offset % 16 != 0 || place / Tile::chunks != row || taken[place]) return false;
      taken[place] = true;
    }
  return true;
}

// Eight lanes read eight rows of one chunk: 128 bytes, every bank once.
template <class Tile>
constexpr bool is_free_of_conflicts() {
  for (int first = 0; first < Tile::rows; first += 8)
    for (int chunk = 0; chunk < Tile::chunks; ++chunk) {
      unsigned groups = 0;
      for (int row = first; row < first + 8; ++row) groups |= 1u << (Tile::offset(row, chunk) / 16 % 8);
      if (groups != 0xff) return false;
    }
  return true;
}

template <int dim>
constexpr bool check_layout() {
  using Wide = SmemTile<64, 2 * dim>;  // its elements have 16 bits
  using Codes = SmemTile<64, dim>;
  static_assert(is_bijection<Wide>() && is_bijection<Codes>(), "two chunks share a place, or one leaves its row");
  static_assert(is_free_of_conflicts<Wide>() && is_free_of_conflicts<Codes>(),
                "rows of one ldmatrix phase share a bank");
  return true;
}

}  // namespace rapt::test
