// A batch of products by rows, C[b,h,i,j] = scale * fa(b,h,i) * fb(b,h/g,j) * sum over d of A[b,h,i,d] * B[b,h/g,j,d]:
// its run-time values, and the compile-time choices of the kernels that compute it. Filled by
// src/operations/products.cpp, read by cpu/products.cpp and kernels/products/products.cuh; includes nothing outside
// shared/.
#pragma once

#include "params.h"

namespace rapt {

// A factor for each row of A or B, or for groups of 2^shift rows; 1 where absent.
struct FactorRef {
  const float* data = nullptr;
  index_t batch = 0, head = 0, group = 0;  // strides
  int shift = 0;

  constexpr float at(index_t b, index_t h, index_t row) const {
    return data != nullptr ? data[b * batch + h * head + (row >> shift) * group] : 1.0f;
  }
};

struct ProductParams {
  TensorRef a, b, out;  // rows i of a, rows j of b, columns d; out: rows i, columns j. Sizes of 1 have stride 0
  index_t batch = 1, heads = 1, group = 1;  // group: heads of a for each head of b
  index_t rows_a = 0, rows_b = 0, depth = 0;
  float scale = 1.0f;
  FactorRef a_factor, b_factor;
};

// How many products are summed by themselves before that sum joins the others. Sums stay near the error of single
// products however deep they are, on tensor cores of Ada as well, whose own sums keep about 13 fraction bits.
constexpr int product_promotion_interval = 512;

struct ProductConfig {
  DType a = DType::none, b = DType::none, out = DType::none;
  bool tensor_cores = false;       // FP8 instructions; else fused multiply-add of floats
  int block_m = 64, block_n = 64;  // rows of a and of b that a thread block multiplies
  int warps_m = 2, warps_n = 4;    // tensor cores: how the block's tile is dealt to warps
  int block_k = 16;             // of the depth that is held in shared memory at once ...
  int stages = 1;                  // ... so many times
  int promotion_interval = 0;                   // product_promotion_interval, or 0 where the depth is at most that
  int min_blocks = 1;              // thread blocks that must fit on an SM: bounds the registers

  constexpr int threads() const { return 32 * warps_m * warps_n; }
  // Tensor cores hold codes; the others floats, depth by rows with 4 floats between to spread them over the banks.
  constexpr int a_bytes() const { return tensor_cores ? block_m * block_k : 4 * (block_m + 4) * block_k; }
  constexpr int b_bytes() const { return tensor_cores ? block_n * block_k : 4 * (block_n + 4) * block_k; }
  constexpr int shared_bytes() const { return stages * (a_bytes() + b_bytes()); }

  constexpr bool operator==(const ProductConfig&) const = default;
};

// Tiles of all products, each a block's work.
constexpr index_t product_tiles(const ProductParams& p, const ProductConfig& c) {
  return p.batch * p.heads * ((p.rows_a + c.block_m - 1) / c.block_m) * ((p.rows_b + c.block_n - 1) / c.block_n);
}

}  // namespace rapt
