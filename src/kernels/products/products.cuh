// rapt_qk and rapt_gemm on GPUs: C = A * B^T. SimtGemm takes every dtype and stride. Fp8MmaGemm takes FP8 rows that are
// contiguous and 16-byte aligned, and uses FP8 mma (sm_89 and newer). Both accumulate in f32. Host half:
// products_gpu.cpp.
#pragma once

#include "device/numeric.cuh"
#include "device/tile.cuh"
#include "ptx/copy.cuh"
#include "ptx/mma.cuh"
#include "shared/products.h"

namespace rapt {

// The first row and column of a CTA tile. Consecutive tiles share rows of b.
struct ProductTile {
  index_t b, h, row, column;
  ProductTile(const ProductParams& p, const ProductConfig& c, index_t tile) {
    const index_t tiles_m = (p.rows_a + c.block_m - 1) / c.block_m, tiles_n = (p.rows_b + c.block_n - 1) / c.block_n;
    row = tile % tiles_m * c.block_m, tile /= tiles_m;
    column = tile % tiles_n * c.block_n, tile /= tiles_n;
    h = tile % p.heads, b = tile / p.heads;
  }
};

// Scales and stores one output row from accumulators, two columns at a time if the alignment allows.
template <DType dtype>
struct OutputRow {
  const ProductParams& p;
  const ProductTile& tile;
  index_t first;  // offset of column 0
  float factor;
  bool inside, vector_stores;

  OutputRow(const ProductParams& params, const ProductTile& place, index_t i) : p(params), tile(place) {
    inside = i < p.rows_a;
    first = p.out.index(tile.b, tile.h, i);
    factor = inside ? p.scale * p.a_factor.at(tile.b, tile.h, i) : 0.0f;
    const unsigned long address = reinterpret_cast<unsigned long>(p.out.data) + first * bytes_of(dtype);
    vector_stores = p.out.column == 1 && address % (2 * bytes_of(dtype)) == 0;
  }

  // Stores columns j (even) and j + 1, whose b_factors are fx and fy.
  void store(index_t j, float x, float y, float fx, float fy) const {
    if (!inside || j >= p.rows_b) return;
    x = x * factor * fx, y = y * factor * fy;
    if (vector_stores && j + 1 < p.rows_b) return store_pair(first + j, x, y);
    store_element<dtype>(p.out.data, first + j * p.out.column, x);
    if (j + 1 < p.rows_b) store_element<dtype>(p.out.data, first + (j + 1) * p.out.column, y);
  }

 private:
  struct alignas(8) Floats {
    float x, y;
  };
  void store_pair(index_t at, float x, float y) const {
    if constexpr (dtype == DType::f32)
      *reinterpret_cast<Floats*>(static_cast<float*>(p.out.data) + at) = {x, y};
    else
      *reinterpret_cast<unsigned*>(static_cast<unsigned short*>(p.out.data) + at) =
          dtype == DType::f16 ? pack_f16x2(x, y) : pack_bf16x2(x, y);
  }
};

// --- any dtype, any strides -----------------------------------------------------------------------------------------

// Each thread computes 4 rows x 4 columns. Both operands are floats [depth][row] in shared memory.
template <ProductConfig cfg>
struct SimtGemm {
  static constexpr int thread_tile = 4, threads_n = cfg.block_n / thread_tile;  // threads along the columns
  static_assert(cfg.block_m * cfg.block_n == thread_tile * thread_tile * cfg.threads(), "a thread has 16 products");
  static constexpr int pitch_a = cfg.block_m + 4, pitch_b = cfg.block_n + 4;

  const ProductParams& p;
  const ProductTile tile;
  float *const a, *const b;
  const int thread = static_cast<int>(threadIdx.x);
  float sum[thread_tile][thread_tile] = {};

  SimtGemm(const ProductParams& params, index_t index, char* shared)
      : p(params), tile(p, cfg, index), a(reinterpret_cast<float*>(shared)), b(a + pitch_a * cfg.block_k) {}

  // Loads rows [first, first + rows) of one operand from depth d on. Elements beyond the end of the operand become
  // zeros. Neighbouring threads read along the dimension with the smaller stride.
  template <DType dtype, int rows>
  void load(float* to, const TensorRef& from, index_t h, index_t first, index_t count, index_t d) const {
    const bool rows_contiguous = from.row * from.row < from.column * from.column;
    const index_t start = from.index(tile.b, h, first) + d * from.column;
#pragma unroll
    for (int n = 0; n < rows * cfg.block_k; n += cfg.threads()) {
      const int at = n + thread;
      const int row = rows_contiguous ? at % rows : at / cfg.block_k,
                column = rows_contiguous ? at / rows : at % cfg.block_k;
      const bool inside = first + row < count && d + column < p.depth;
      to[column * (rows + 4) + row] =
          inside ? load_element<dtype>(from.data, start + row * from.row + column * from.column) : 0.0f;
    }
  }

  void fma_block(float (&acc)[thread_tile][thread_tile]) const {
    const int row = thread / threads_n * thread_tile, column = thread % threads_n * thread_tile;
#pragma unroll
    for (int d = 0; d < cfg.block_k; ++d) {
      float x[thread_tile], y[thread_tile];
      load_shared_4(shared_address(a + d * pitch_a + row), x[0], x[1], x[2], x[3]);
      load_shared_4(shared_address(b + d * pitch_b + column), y[0], y[1], y[2], y[3]);
#pragma unroll
      for (int i = 0; i < thread_tile; ++i)
#pragma unroll
        for (int j = 0; j < thread_tile; ++j) acc[i][j] = fmaf(x[i], y[j], acc[i][j]);
    }
  }

  // Accumulates the products of depths [begin, end).
  void mainloop(index_t begin, index_t end, float (&acc)[thread_tile][thread_tile]) const {
#pragma unroll 1
    for (index_t d = begin; d < end; d += cfg.block_k) {
      __syncthreads();  // the previous tile has been read
      load<cfg.a, cfg.block_m>(a, p.a, tile.h, tile.row, p.rows_a, d);
      load<cfg.b, cfg.block_n>(b, p.b, tile.h / p.group, tile.column, p.rows_b, d);
      __syncthreads();
      fma_block(acc);
    }
  }

  void run() {
    if constexpr (cfg.promotion_interval == 0) {
      mainloop(0, p.depth, sum);
    } else {
#pragma unroll 1
      for (index_t d = 0; d < p.depth; d += cfg.promotion_interval) {
        float partial[thread_tile][thread_tile] = {};
        mainloop(d, d + cfg.promotion_interval < p.depth ? d + cfg.promotion_interval : p.depth, partial);
#pragma unroll
        for (int i = 0; i < thread_tile; ++i)
#pragma unroll
          for (int j = 0; j < thread_tile; ++j) sum[i][j] += partial[i][j];
      }
    }
    store();
  }

  void store() const {
    const index_t first = tile.column + thread % threads_n * thread_tile;
    float factor[thread_tile];
#pragma unroll
    for (int j = 0; j < thread_tile; ++j)
      factor[j] = first + j < p.rows_b ? p.b_factor.at(tile.b, tile.h / p.group, first + j) : 0.0f;
#pragma unroll
    for (int i = 0; i < thread_tile; ++i) {
      const OutputRow<cfg.out> row(p, tile, tile.row + thread / threads_n * thread_tile + i);
#pragma unroll
      for (int j = 0; j < thread_tile; j += 2) row.store(first + j, sum[i][j], sum[i][j + 1], factor[j], factor[j + 1]);
    }
  }
};

// --- FP8 by tensor cores --------------------------------------------------------------------------------------------

template <ProductConfig cfg>
struct Fp8MmaGemm {
  using ATile = SmemTile<cfg.block_m, cfg.block_k>;
  using BTile = SmemTile<cfg.block_n, cfg.block_k>;
  static constexpr int warp_rows = cfg.block_m / cfg.warps_m, warp_cols = cfg.block_n / cfg.warps_n;
  static constexpr int m_tiles = warp_rows / 16, n_tiles = warp_cols / 8;
  static_assert(warp_rows % 16 == 0 && warp_cols % 16 == 0, "a warp has whole mma tiles, those of b in pairs");
  static_assert(cfg.promotion_interval % cfg.block_k == 0, "promotion happens between k blocks");
  using Accumulator = float[m_tiles][n_tiles][4];

  const ProductParams& p;
  const ProductTile tile;
  const unsigned smem;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int warp_row = warp / cfg.warps_n * warp_rows, warp_column = warp % cfg.warps_n * warp_cols;
  const char *a_rows, *b_rows;
  const int k_blocks;

  Fp8MmaGemm(const ProductParams& params, index_t index, unsigned shared)
      : p(params),
        tile(p, cfg, index),
        smem(shared),
        k_blocks(static_cast<int>((p.depth + cfg.block_k - 1) / cfg.block_k)) {
    a_rows = static_cast<const char*>(p.a.data) + p.a.index(tile.b, tile.h, tile.row);
    b_rows = static_cast<const char*>(p.b.data) + p.b.index(tile.b, tile.h / p.group, tile.column);
  }

  unsigned a_smem(int k_block) const {
    return smem + static_cast<unsigned>(k_block % cfg.stages * (ATile::bytes + BTile::bytes));
  }
  unsigned b_smem(int k_block) const { return a_smem(k_block) + ATile::bytes; }

  template <class Tile>
  void load_operand(unsigned to, const char* rows, index_t pitch, index_t count, index_t d) const {
    constexpr int per_pass = cfg.threads() / Tile::chunks;
    static_assert(Tile::rows % per_pass == 0 || Tile::rows < per_pass);
    const int first = thread / Tile::chunks, chunk = thread % Tile::chunks;
    const bool column = d + chunk * 16 < p.depth;
    const char* from = rows + first * pitch + d + chunk * 16;
#pragma unroll
    for (int r = 0; r < Tile::rows; r += per_pass) {
      const int row = first + r;
      if (Tile::rows >= per_pass || row < Tile::rows)
        cp_async_16(to + static_cast<unsigned>(Tile::offset(row, chunk)), from, column && row < count);
      from += per_pass * pitch;
    }
  }

  // Commits one cp.async group. Past the last k block the group is empty, so that wait counts stay constant.
  void load(int k_block) const {
    if (k_block < k_blocks) {
      const index_t d = static_cast<index_t>(k_block) * cfg.block_k;
      load_operand<ATile>(a_smem(k_block), a_rows, p.a.row, p.rows_a - tile.row, d);
      load_operand<BTile>(b_smem(k_block), b_rows, p.b.row, p.rows_b - tile.column, d);
    }
    cp_async_commit_group();
  }

  // ldmatrix moves 16-bit elements, here two FP8 values each. This gives the operand layout of m16n8k32.
  void mma_block(int k_block, Accumulator& sums) const {
    const unsigned a = a_smem(k_block), b = b_smem(k_block);
    const int a_row = warp_row + lane % 16, a_chunk = lane / 16;
    const int b_row = warp_column + lane / 16 * 8 + lane % 8, b_chunk = lane / 8 % 2;
#pragma unroll
    for (int k = 0; k < cfg.block_k / 16; k += 2) {
      unsigned x[m_tiles][4], y[n_tiles / 2][4];
#pragma unroll
      for (int m = 0; m < m_tiles; ++m)
        ldmatrix_x4(x[m], a + static_cast<unsigned>(ATile::offset(a_row + m * 16, a_chunk + k)));
#pragma unroll
      for (int n = 0; n < n_tiles / 2; ++n)
        ldmatrix_x4(y[n], b + static_cast<unsigned>(BTile::offset(b_row + n * 16, b_chunk + k)));
#pragma unroll
      for (int m = 0; m < m_tiles; ++m)
#pragma unroll
        for (int n = 0; n < n_tiles; ++n)
          mma_m16n8k32<cfg.a, cfg.b>(sums[m][n], x[m], y[n / 2][n % 2 * 2], y[n / 2][n % 2 * 2 + 1]);
    }
  }

  static void clear(Accumulator& sums) {
#pragma unroll
    for (int m = 0; m < m_tiles; ++m)
#pragma unroll
      for (int n = 0; n < n_tiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[m][n][i] = 0.0f;
  }
  static void promote(Accumulator& partial, Accumulator& sums) {
#pragma unroll
    for (int m = 0; m < m_tiles; ++m)
#pragma unroll
      for (int n = 0; n < n_tiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[m][n][i] += partial[m][n][i];
    clear(partial);
  }

  // Waits for a k block, starts the next load into the buffer of the previous k block, and multiplies.
  void mainloop_step(int k_block, Accumulator& sums) const {
    cp_async_wait_group(cfg.stages - 2);
    __syncthreads();
    load(k_block + cfg.stages - 1);
    mma_block(k_block, sums);
  }

  void run() const {
    __syncthreads();  // the previous tile has been read
#pragma unroll
    for (int k_block = 0; k_block < cfg.stages - 1; ++k_block) load(k_block);
    Accumulator sums, partial;
    clear(sums), clear(partial);
    constexpr int k_blocks_per_promotion = cfg.promotion_interval == 0 ? 1 : cfg.promotion_interval / cfg.block_k;
#pragma unroll 1
    for (int k_block = 0; k_block < k_blocks; k_block += k_blocks_per_promotion) {
      if constexpr (cfg.promotion_interval == 0) {
        mainloop_step(k_block, sums);
      } else {
        const int end = k_block + k_blocks_per_promotion < k_blocks ? k_block + k_blocks_per_promotion : k_blocks;
#pragma unroll 1
        for (int s = k_block; s < end; ++s) mainloop_step(s, partial);
        promote(partial, sums);
      }
    }
    cp_async_wait_group(0);
    store(sums);
  }

  void store(const Accumulator& sums) const {
    const index_t first = tile.column + warp_column + lane % 4 * 2;
    float factors[n_tiles][2];
#pragma unroll
    for (int n = 0; n < n_tiles; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const index_t j = first + n * 8 + i;
        factors[n][i] = j < p.rows_b ? p.b_factor.at(tile.b, tile.h / p.group, j) : 0.0f;
      }
#pragma unroll
    for (int m = 0; m < m_tiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const OutputRow<cfg.out> row(p, tile, tile.row + warp_row + m * 16 + half * 8 + lane / 4);
#pragma unroll
        for (int n = 0; n < n_tiles; ++n)
          row.store(first + n * 8, sums[m][n][2 * half], sums[m][n][2 * half + 1], factors[n][0], factors[n][1]);
      }
  }
};

// The kernel: a grid-stride loop over tiles.
template <ProductConfig cfg>
inline void multiply_rows(const ProductParams& p) {
  extern __shared__ __align__(1024) char product_shared[];
  const index_t tiles = product_tiles(p, cfg);
#pragma unroll 1
  for (index_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    if constexpr (cfg.tensor_cores)
      Fp8MmaGemm<cfg>(p, tile, shared_address(product_shared)).run();
    else
      SimtGemm<cfg>(p, tile, product_shared).run();
  }
}

}  // namespace rapt
