// A tile of rows in shared memory, stored in 16-byte chunks under an XOR swizzle, and its copy from global memory.
// Device only, but for the layout, which the host may evaluate too.
#pragma once

#include "ptx/copy.cuh"
#include "shared/params.h"

namespace rapt {

// Row r, chunk c lies at chunk c ^ swizzle(r) of its row. The eight rows that one ldmatrix phase reads at a fixed c
// then fall into eight different bank groups of 16 bytes, for every row length: rows of n chunks begin at group r * n
// mod 8, which repeats after 8 / g rows (g = gcd(n, 8)); each repetition flips other low bits, and they stay inside the
// row.
template <int rows_, int row_bytes>
struct SmemTile {
  static constexpr int rows = rows_, chunks = row_bytes / 16, bytes = rows * row_bytes;
  static constexpr int group = chunks % 8 == 0 ? 8 : chunks % 4 == 0 ? 4 : chunks % 2 == 0 ? 2 : 1;
  static_assert(row_bytes % 16 == 0, "rows are whole chunks");

  static constexpr int swizzle(int row) { return (row / (8 / group)) & (group - 1); }
  static constexpr int offset(int row, int chunk) { return (row * chunks + (chunk ^ swizzle(row))) * 16; }
};

// Where a lane's row of an ldmatrix lies, for a row r0 + 8n and a chunk c0 + c with no bit of c in c0: the swizzle
// depends on r0 alone, so that n and c only move the address by constants.
template <class Tile>
struct LdmatrixAddress {
  unsigned row, flip;
  LdmatrixAddress(unsigned tile, int row0, int chunk0)
      : row(tile + static_cast<unsigned>(row0 * Tile::chunks * 16)),
        flip(static_cast<unsigned>((chunk0 ^ Tile::swizzle(row0)) * 16)) {}
  unsigned at(int rows, int chunk) const {
    return row + (static_cast<unsigned>(chunk * 16) ^ flip) + static_cast<unsigned>(rows * Tile::chunks * 16);
  }
};

// Copies rows [0, rows) of a matrix whose row 0 lies at `from`, `pitch` bytes apart, `live_bytes` of each: the rest of
// a row and rows from `count` on become zeros. All `threads` take part; commit and wait are the caller's.
template <class Tile, int live_bytes, int threads>
inline void copy_tile(unsigned to, const char* from, index_t pitch, index_t count, int thread_index) {
  static_assert(live_bytes % 16 == 0, "rows are copied in whole chunks");
  const int thread =
      static_cast<int>(volatile_copy(static_cast<unsigned>(thread_index)));  // holds no addresses between calls
  constexpr int per_pass = threads / Tile::chunks;                           // rows; the last threads may have none
  static_assert(per_pass > 0, "a row has more chunks than the block has threads");
  const int first_row = thread / Tile::chunks, chunk = thread % Tile::chunks;
  if (threads % Tile::chunks != 0 && first_row >= per_pass) return;
  const bool column = chunk * 16 < live_bytes;
  const char* source = from + first_row * pitch + chunk * 16;
  const int live = static_cast<int>(count < Tile::rows ? count : Tile::rows);
#pragma unroll
  for (int r = 0; r < Tile::rows; r += per_pass) {
    const int row = first_row + r;
    if (Tile::rows % per_pass == 0 || row < Tile::rows)
      cp_async_16(to + Tile::offset(row, chunk), source, column && row < live);
    source += per_pass * pitch;
  }
}

}  // namespace rapt
