// Copies a tile from global to shared memory and reads it back element by element. Called by prim_test.cpp with one
// block.
#pragma once

#include "device/tile.cuh"
#include "prim_args.cuh"

namespace rapt::test {

// a: a matrix of 16-bit elements whose rows are `pitch` elements apart; args.n rows are in use. out: [rows][columns].
template <int rows, int dim, int threads, int pitch>
__device__ void copy_and_read_back(const PrimArgs& args) {
  constexpr int columns = (dim + 15) / 16 * 16;
  using Tile = SmemTile<rows, 2 * columns>;
  extern __shared__ __align__(16) unsigned char smem[];
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < Tile::bytes; i += threads) smem[i] = 0xff;  // NaN shows elements that the copy did not write
  __syncthreads();
  copy_tile<Tile, 2 * dim, threads>(shared_address(smem), static_cast<const char*>(args.a), 2 * pitch, args.n, thread);
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();
  unsigned short* out = static_cast<unsigned short*>(args.out);
  for (int i = thread; i < rows * columns; i += threads) {
    const int row = i / columns, column = i % columns;
    out[i] = *reinterpret_cast<const unsigned short*>(smem + Tile::offset(row, column / 8) + column % 8 * 2);
  }
}

}  // namespace rapt::test
