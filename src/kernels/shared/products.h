// Batched GEMM with B transposed: C[b,h,i,j] = scale * fa(b,h,i) * fb(b,h/g,j) * sum over d of A[b,h,i,d] *
// B[b,h/g,j,d]. ProductParams: the values of one call, filled by src/operations/products.cpp, read by cpu/products.cpp
// and kernels/products/products.cuh. ProductConfig: the compile-time choices of the GPU kernels. Includes nothing
// outside shared/.
#pragma once

#include "params.h"

namespace rapt {

// A factor for each row of A or B, or for each group of 2^shift rows; 1 if absent.
struct FactorRef {
  const float* data = nullptr;
  index_t batch = 0, head = 0, group = 0;  // strides
  int shift = 0;

  constexpr float at(index_t b, index_t h, index_t row) const {
    return data != nullptr ? data[b * batch + h * head + (row >> shift) * group] : 1.0f;
  }
};

struct ProductParams {
  TensorRef a, b, out;                      // a: [i, d], b: [j, d], out: [i, j]. A dimension of size 1 has stride 0
  index_t batch = 1, heads = 1, group = 1;  // group: heads of a for each head of b
  index_t rows_a = 0, rows_b = 0, depth = 0;
  float scale = 1.0f;
  FactorRef a_factor, b_factor;
};

// Two-level accumulation: the kernel sums this many products in an inner accumulator and then adds the sum to an outer
// accumulator. This keeps the error small for any depth, also on Ada, whose tensor cores keep about 13 fraction bits of
// a sum.
constexpr int product_promotion_interval = 512;

struct ProductConfig {
  DType a = DType::none, b = DType::none, out = DType::none;
  bool tensor_cores = false;       // true: FP8 mma. false: f32 FMA
  int block_m = 64, block_n = 64;  // CTA tile: rows of a, rows of b
  int warps_m = 2, warps_n = 4;    // warps along block_m and block_n
  int block_k = 16;                // depth of a CTA tile in shared memory
  int stages = 1;                  // number of buffers for tiles
  int promotion_interval = 0;      // 0: off, for a depth of at most product_promotion_interval
  int min_blocks = 1;              // CTAs per SM in __launch_bounds__; limits registers

  constexpr int threads() const { return 32 * warps_m * warps_n; }
  // Tensor cores need FP8 operands. Otherwise operands are floats [depth][row], padded by 4 floats to avoid bank
  // conflicts.
  constexpr int a_bytes() const { return tensor_cores ? block_m * block_k : 4 * (block_m + 4) * block_k; }
  constexpr int b_bytes() const { return tensor_cores ? block_n * block_k : 4 * (block_n + 4) * block_k; }
  constexpr int shared_bytes() const { return stages * (a_bytes() + b_bytes()); }

  constexpr bool operator==(const ProductConfig&) const = default;
};

// Number of CTA tiles of a call.
constexpr index_t product_tiles(const ProductParams& p, const ProductConfig& c) {
  return p.batch * p.heads * ((p.rows_a + c.block_m - 1) / c.block_m) * ((p.rows_b + c.block_n - 1) / c.block_n);
}

}  // namespace rapt
