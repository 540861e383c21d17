// rapt_qk and rapt_gemm on the CPU: a blocked GEMM. Tiles of both operands are converted to float; the microkernel
// computes 4 x 8 products. The code is compiled for one instruction set only, because these operations are references
// and serve small problems.
#include "cpu/products.h"

#include <algorithm>

#define RAPT_SCALAR_ISA 1  // as in isa_scalar.cpp: this file must run on every machine
#include "cpu/convert.h"

namespace rapt::cpu {
namespace {

constexpr int64_t block_m = 64, block_n = 64, block_k = product_promotion_interval;
constexpr int64_t register_m = 4, register_n = 8;  // accumulators in registers
typedef float Floats __attribute__((vector_size(16)));

// Scratch of one thread. a: [row][depth]. b: panels of register_n rows, each [depth][row]. sums: the products of the
// tile.
struct Scratch {
  float *a, *b, *sums;
  explicit Scratch(float* from) : a(from), b(a + block_m * block_k), sums(b + block_n * block_k) {}
  static constexpr size_t floats = block_m * block_k + block_n * block_k + block_m * block_n;
};

struct Work {
  int64_t b, h, row, column, rows, columns;
};

// Converts depths [d, d + count) of a row to float.
void widen(const TensorRef& t, int64_t b, int64_t h, int64_t row, int64_t d, int64_t count, float* to) {
  TensorRef from = t;
  from.data = static_cast<std::byte*>(t.data) + d * t.column * bytes_of(t.dtype);
  read_row(from, b, h, row, count, to);
}

// Packs both operands of a tile for depths [d, d + count). Rows past the end are filled with zeros for the microkernel.
void widen_tile(const ProductParams& p, const Work& w, int64_t d, int64_t count, const Scratch& s) {
  for (int64_t i = 0; i < block_m; ++i) {
    float* row = s.a + i * block_k;
    if (i < w.rows)
      widen(p.a, w.b, w.h, w.row + i, d, count, row);
    else
      std::fill_n(row, count, 0.0f);
  }
  float rows[register_n][block_k];
  for (int64_t first = 0; first < w.columns; first += register_n) {
    for (int64_t j = 0; j < register_n; ++j)
      if (first + j < w.columns)
        widen(p.b, w.b, w.h / p.group, w.column + first + j, d, count, rows[j]);
      else
        std::fill_n(rows[j], count, 0.0f);
    float* to = s.b + first * block_k;
    for (int64_t k = 0; k < count; ++k)
      for (int64_t j = 0; j < register_n; ++j) to[k * register_n + j] = rows[j][k];
  }
}

// Adds 4 x 8 products over `count` depths to the sums, with two-level accumulation.
void microkernel(const float* a, const float* b, int64_t count, float* sums) {
  Floats part[register_m][2] = {};
  for (int64_t k = 0; k < count; ++k) {
    Floats x, y;
    __builtin_memcpy(&x, b + k * register_n, sizeof x);
    __builtin_memcpy(&y, b + k * register_n + 4, sizeof y);
    for (int64_t i = 0; i < register_m; ++i) {
      const float factor = a[i * block_k + k];
      part[i][0] += factor * x, part[i][1] += factor * y;
    }
  }
  for (int64_t i = 0; i < register_m; ++i)
    for (int64_t j = 0; j < register_n; ++j) sums[i * block_n + j] += part[i][j / 4][j % 4];
}

void store_tile(const ProductParams& p, const Work& w, const float* sums) {
  for (int64_t i = 0; i < w.rows; ++i) {
    const float factor = p.scale * p.a_factor.at(w.b, w.h, w.row + i);
    float row[block_n];
    for (int64_t j = 0; j < w.columns; ++j)
      row[j] = sums[i * block_n + j] * factor * p.b_factor.at(w.b, w.h / p.group, w.column + j);
    TensorRef to = p.out;
    to.data = static_cast<std::byte*>(p.out.data) + w.column * p.out.column * bytes_of(p.out.dtype);
    write_row(to, w.b, w.h, w.row + i, w.columns, row);
  }
}

void multiply_tile(const ProductParams& p, const Work& w, const Scratch& s) {
  std::fill_n(s.sums, block_m * block_n, 0.0f);
  for (int64_t d = 0; d < p.depth; d += block_k) {
    const int64_t count = std::min(block_k, p.depth - d);
    widen_tile(p, w, d, count, s);
    for (int64_t j = 0; j < w.columns; j += register_n)
      for (int64_t i = 0; i < w.rows; i += register_m)
        microkernel(s.a + i * block_k, s.b + j * block_k, count, s.sums + i * block_n + j);
  }
  store_tile(p, w, s.sums);
}

}  // namespace

size_t product_scratch_floats() { return Scratch::floats; }

void multiply(ThreadPool& pool, const ProductParams& p, float* scratch) {
  const int64_t tiles_m = (p.rows_a + block_m - 1) / block_m, tiles_n = (p.rows_b + block_n - 1) / block_n;
  pool.parallel_for(p.batch * p.heads * tiles_m * tiles_n, [&](int worker, int64_t index) {
    Work w;
    w.column = index % tiles_n * block_n, index /= tiles_n;
    w.row = index % tiles_m * block_m, index /= tiles_m;
    w.h = index % p.heads, w.b = index / p.heads;
    w.rows = std::min(block_m, p.rows_a - w.row), w.columns = std::min(block_n, p.rows_b - w.column);
    multiply_tile(p, w, Scratch(scratch + static_cast<size_t>(worker) * Scratch::floats));
  });
}

}  // namespace rapt::cpu
