// SmemTile: rows in shared memory as 16-byte chunks with an XOR swizzle; and its copy from global memory. Device only,
// except for the layout functions.
#pragma once

#include "ptx/copy.cuh"
#include "shared/params.h"

namespace rapt {

// Chunk c of row r is stored at chunk c ^ swizzle(r) of the row. The eight rows that one ldmatrix phase reads at the
// same c then lie in eight different 16-byte bank groups, for every row length. Reason: let n be the number of chunks
// of a row, and g = gcd(n, 8). Row r begins at bank group r * n mod 8. This value repeats after 8 / g rows. After every
// 8 / g rows the swizzle takes another number below g. So eight rows use eight bank groups. XOR with a number below g
// keeps a chunk inside its aligned group of g chunks. g divides n, so the chunk also stays inside the row.
// reversed: the bits of the swizzle are in reverse order. Then neighbouring rows differ in the highest bit. So a load
// of four chunks of two rows, or of two chunks of four rows, is also free of conflicts (sm80/tf32.cuh).
template <int rows_, int row_bytes, bool reversed = false>
struct SmemTile {
  static constexpr int rows = rows_, chunks = row_bytes / 16, bytes = rows * row_bytes;
  static constexpr int group = chunks % 8 == 0 ? 8 : chunks % 4 == 0 ? 4 : chunks % 2 == 0 ? 2 : 1;
  static_assert(row_bytes % 16 == 0, "rows are whole chunks");

  static constexpr int swizzle(int row) {
    const int x = (row / (8 / group)) & (group - 1);
    if constexpr (!reversed || group < 4) return x;
    return group == 4 ? x % 2 * 2 + x / 2 : x % 2 * 4 + (x & 2) + x / 4;
  }
  static constexpr int offset(int row, int chunk) { return (row * chunks + (chunk ^ swizzle(row))) * 16; }
};

// The address of a lane's row for ldmatrix: row number (row0 + rows), chunk number (chunk0 + chunk). `rows` is a
// multiple of 8, and `chunk` and chunk0 have no bit in common. So the swizzle depends only on row0. at() adds the
// constant `rows` and XORs the constant `chunk`.
template <class Tile>
struct LdmatrixAddress {
  unsigned row, swizzled_chunk;  // in bytes
  LdmatrixAddress(unsigned tile, int row0, int chunk0)
      : row(tile + static_cast<unsigned>(row0 * Tile::chunks * 16)),
        swizzled_chunk(static_cast<unsigned>((chunk0 ^ Tile::swizzle(row0)) * 16)) {}
  unsigned at(int rows, int chunk) const {
    return row + (static_cast<unsigned>(chunk * 16) ^ swizzled_chunk) + static_cast<unsigned>(rows * Tile::chunks * 16);
  }
};

// With octets, row r of K and V in shared memory holds key octet_key(r) of the tile. Bits 1 and 2 of r and bits 3 and 4
// of r change places. A thread holds the scores of two columns in each of four tiles of eight columns. This order makes
// their keys eight neighbours, whose elements of a bias or a mask are loaded at once.
constexpr int octet_key(int row) { return (row & ~30) | (row & 6) << 2 | (row & 24) >> 2; }
template <bool octets>
constexpr int key_of_row(int row) {
  return octets ? octet_key(row) : row;
}

// Copies a tile by cp.async: `live_bytes` of each row, a multiple of 16. The rows are `pitch` bytes apart in global
// memory. The rest of a row, and rows from number `count` on, become zeros. All `threads` of the CTA call this; the
// caller commits and waits.
template <class Tile, int threads, bool octets = false>
inline void copy_columns(unsigned to, const char* from, int live_bytes, index_t pitch, index_t count,
                         int thread_index) {
  const int thread = static_cast<int>(
      volatile_copy(static_cast<unsigned>(thread_index)));  // keeps no addresses in registers between calls
  constexpr int per_pass = threads / Tile::chunks;          // in rows; the last threads can have nothing to copy
  static_assert(per_pass > 0, "a row has more chunks than the block has threads");
  const int first_row = thread / Tile::chunks, chunk = thread % Tile::chunks;
  if (threads % Tile::chunks != 0 && first_row >= per_pass) return;
  const bool column = chunk * 16 < live_bytes;
  const char* source = from + key_of_row<octets>(first_row) * pitch + chunk * 16;
  const int live = static_cast<int>(count < Tile::rows ? count : Tile::rows);
  constexpr bool disjoint_bits = (per_pass & (per_pass - 1)) == 0;  // of first_row and r
#pragma unroll
  for (int r = 0; r < Tile::rows; r += per_pass) {
    const int row = first_row + r,
              key = disjoint_bits ? key_of_row<octets>(first_row) + key_of_row<octets>(r) : key_of_row<octets>(row);
    if (Tile::rows % per_pass == 0 || row < Tile::rows)
      cp_async_16(to + Tile::offset(row, chunk), source, column && key < live);
    const int next = disjoint_bits ? key_of_row<octets>(first_row) + key_of_row<octets>(r + per_pass)
                                   : key_of_row<octets>(row + per_pass);
    source += (next - key) * pitch;
  }
}
// The same for a number of bytes that is known at compile time.
template <class Tile, int live_bytes, int threads, bool octets = false>
inline void copy_tile(unsigned to, const char* from, index_t pitch, index_t count, int thread_index) {
  static_assert(live_bytes % 16 == 0, "rows are copied in whole chunks");
  copy_columns<Tile, threads, octets>(to, from, live_bytes, pitch, count, thread_index);
}

// Like copy_columns(), for rows at any addresses: address_of(row), which is also called for rows from number `count`
// on; these addresses are not used. Several addresses are computed before the first of their copies: address_of() may
// load from shared memory, and these loads then overlap.
template <class Tile, int threads, bool octets = false, class AddressOf>
inline void copy_rows(unsigned to, int live_bytes, int count, int thread_index, const AddressOf& address_of) {
  const int thread = static_cast<int>(volatile_copy(static_cast<unsigned>(thread_index)));
  constexpr int per_pass = threads / Tile::chunks, together = 8;
  static_assert(per_pass > 0, "a row has more chunks than the block has threads");
  const int first_row = thread / Tile::chunks, chunk = thread % Tile::chunks;
  if (threads % Tile::chunks != 0 && first_row >= per_pass) return;
  const bool column = live_bytes == Tile::chunks * 16 || chunk * 16 < live_bytes;
#pragma unroll
  for (int first = 0; first < Tile::rows; first += together * per_pass) {
    const char* from[together];
#pragma unroll
    for (int i = 0; i < together && first + i * per_pass < Tile::rows; ++i) {
      const int row = first_row + first + i * per_pass;
      from[i] = address_of(key_of_row<octets>(Tile::rows % per_pass == 0 || row < Tile::rows ? row : Tile::rows - 1));
    }
#pragma unroll
    for (int i = 0; i < together && first + i * per_pass < Tile::rows; ++i) {
      const int row = first_row + first + i * per_pass;
      if (Tile::rows % per_pass == 0 || row < Tile::rows)
        cp_async_16(to + Tile::offset(row, chunk), from[i] + chunk * 16, column && key_of_row<octets>(row) < count);
    }
  }
}

}  // namespace rapt
