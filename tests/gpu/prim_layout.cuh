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

// The loads of tf32.cuh: the eight chunks that are read in one cycle lie in eight different bank groups. They are four
// neighbouring chunks of two rows (f32), or two neighbouring chunks of four rows (16 bits).
template <class Tile, int rows_at_once>
constexpr bool is_free_of_conflicts_across() {
  constexpr int chunks_at_once = 8 / rows_at_once;
  for (int first = 0; first < Tile::rows; first += rows_at_once)
    for (int chunk = 0; chunk + chunks_at_once <= Tile::chunks; chunk += chunks_at_once) {
      unsigned groups = 0;
      for (int i = 0; i < 8; ++i)
        groups |= 1u << (Tile::offset(first + i % rows_at_once, chunk + i / rows_at_once) / 16 % 8);
      if (groups != 0xff) return false;
    }
  return true;
}

template <int dim>
constexpr bool check_tf32_layout() {
  using Wide = SmemTile<64, 4 * dim, true>;
  using Half = SmemTile<64, 2 * dim, true>;
  static_assert(is_bijection<Wide>() && is_bijection<Half>(), "two chunks share a place, or one leaves its row");
  static_assert(is_free_of_conflicts<Wide>() && is_free_of_conflicts<Half>(), "cp.async would have bank conflicts");
  // Other head dims can have conflicts, because their swizzle has fewer bits.
  if constexpr (dim % 32 == 0) static_assert(is_free_of_conflicts_across<Wide, 2>(), "f32 loads share a bank");
  if constexpr (dim % 64 == 0) static_assert(is_free_of_conflicts_across<Half, 4>(), "16-bit loads share a bank");
  return true;
}

template <int dim>
constexpr bool check_layout() {
  using Wide = SmemTile<64, 2 * dim>;  // its elements have 16 bits
  using Codes = SmemTile<64, dim>;
  static_assert(is_bijection<Wide>() && is_bijection<Codes>(), "two chunks share a place, or one leaves its row");
  static_assert(is_free_of_conflicts<Wide>() && is_free_of_conflicts<Codes>(),
                "rows of one ldmatrix phase share a bank");
  static_assert(check_tf32_layout<dim>());
  return true;
}

}  // namespace rapt::test
